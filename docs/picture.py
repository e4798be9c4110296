"""Draws the README's staq.svg and the architecture's path.svg: python docs/picture.py"""

from pathlib import Path

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch

BLUE, ORANGE, GREEN = "#0072B2", "#D55E00", "#009E73"


def box(
    axes: Axes, x: float, y: float, width: float, height: float, colour: str, *lines: str, style: str = "-"
) -> None:
    shape = FancyBboxPatch((x, y), width, height, boxstyle="round,pad=0,rounding_size=0.08", linewidth=1.8)
    shape.set(
        edgecolor=colour, facecolor=(*matplotlib.colors.to_rgb(colour), 0.1 if style == "-" else 0), linestyle=style
    )
    axes.add_patch(shape)
    for i, line in enumerate(lines):
        middle = y + height / 2 + (len(lines) - 1) * 0.14 - i * 0.28
        axes.text(
            x + width / 2, middle, line, ha="center", va="center", weight="bold" if len(lines) > 1 and i == 0 else None
        )


def arrow(axes: Axes, *points: tuple[float, float]) -> None:
    xs, ys = zip(*points, strict=True)
    axes.plot(xs[:-1], ys[:-1], color="#333333", linewidth=1.8, solid_joinstyle="miter")
    axes.annotate(
        "", points[-1], points[-2], arrowprops={"arrowstyle": "-|>", "color": "#333333", "linewidth": 1.8, "shrinkA": 0}
    )


def draw_iteration() -> None:
    figure, axes = plt.subplots(figsize=(9, 3.1), layout="constrained")
    box(axes, 0.1, 1.05, 1.8, 1.0, BLUE, "collect", r"5,000 steps with $\pi_k$", "into the replay")
    box(axes, 2.5, 1.05, 1.9, 1.0, ORANGE, "evaluate", "5,000 gradient steps", r"on two networks: $q_k$")
    axes.text(6.2, 2.95, r"improve: push $q_k$, drop $q_{k-M}$", ha="center", weight="bold")
    rows = [(r"$1\cdot q_k$", 2.48), (r"$\beta\cdot q_{k-1}$", 2.1), (r"$\beta^2\cdot q_{k-2}$", 1.72)]
    for label, y in [*rows, (r"$\beta^{M-1}\cdot q_{k-M+1}$", 0.95)]:
        box(axes, 5.2, y, 2.0, 0.3, GREEN, label)
    axes.text(6.2, 1.48, "⋮", ha="center", va="center")
    box(axes, 5.2, 0.57, 2.0, 0.3, "#888888", r"$q_{k-M}$", style="--")
    axes.text(6.2, 0.32, "M frozen networks, one batched pass", ha="center", fontsize=9.5)
    axes.text(
        8.55,
        1.55,
        r"$\pi_{k+1}\propto\exp\left(\frac{\alpha}{1-\beta^M}\,\sum\right)$",
        ha="center",
        va="center",
        fontsize=13,
    )
    arrow(axes, (1.9, 1.55), (2.5, 1.55))
    arrow(axes, (4.4, 1.55), (4.8, 1.55), (4.8, 2.63), (5.2, 2.63))
    arrow(axes, (7.2, 1.55), (7.6, 1.55))
    arrow(axes, (8.55, 1.2), (8.55, 0.1), (1.0, 0.1), (1.0, 1.05))
    axes.set(xlim=(0, 9.6), ylim=(0, 3.2))
    axes.axis("off")
    figure.savefig(Path(__file__).with_name("staq.svg"), metadata={"Date": None})


def draw_path() -> None:
    """One observation: to an action above, to a gradient below, and from there onto the stack."""
    figure, axes = plt.subplots(figsize=(11, 4.4), layout="constrained")
    box(axes, 0.1, 2.6, 2.2, 0.9, BLUE, "environments", "observations [N, …]")
    box(axes, 3.6, 2.6, 2.4, 0.9, GREEN, "stack", r"$c=\sum_i w_i q_i$  [N, A]")
    box(axes, 7.0, 2.6, 2.1, 0.9, GREEN, "logits (Eq. 2)", r"$\xi=\frac{\alpha}{1-\beta^M}\,c$  [N, A]")
    box(axes, 9.6, 2.6, 1.7, 0.9, BLUE, "behaviour", "action [N]")
    box(axes, 0.1, 0.5, 2.6, 0.9, BLUE, "replay", "observations, rewards,", r"$c$ of next states [n, A]")
    box(axes, 3.3, 0.5, 2.0, 0.9, ORANGE, "targets", r"$r+\gamma\,[\pi q+\tau H]$")
    box(axes, 5.8, 0.5, 2.0, 0.9, ORANGE, "loss, gradient", "outputs [E, A, B]")
    box(axes, 8.3, 0.5, 1.6, 0.9, ORANGE, "critics", r"$q_k$  [E, …]")
    for left, right in ((2.3, 3.6), (6.0, 7.0), (9.1, 9.6)):
        arrow(axes, (left, 3.05), (right, 3.05))
    arrow(axes, (10.45, 3.5), (10.45, 3.95), (0.95, 3.95), (0.95, 3.5))
    axes.text(5.7, 4.02, "step", ha="center", fontsize=10)
    arrow(axes, (0.95, 2.6), (0.95, 1.4))
    axes.text(1.02, 2.0, "transition", fontsize=10, va="center")
    arrow(axes, (4.6, 2.6), (4.6, 2.2), (2.3, 2.2), (2.3, 1.4))
    axes.text(2.6, 2.26, r"$c$, known from acting", fontsize=10)
    for left, right in ((2.7, 3.3), (5.3, 5.8), (7.8, 8.3)):
        arrow(axes, (left, 0.95), (right, 0.95))
    arrow(axes, (9.1, 1.4), (9.1, 1.9), (5.6, 1.9), (5.6, 2.6))
    axes.text(6.1, 2.0, r"push $q_k$ (improve)", fontsize=10)
    arrow(axes, (9.1, 0.5), (9.1, 0.15), (1.4, 0.15), (1.4, 0.5))
    axes.text(5.3, 0.2, r"LogitsChange: $c\leftarrow\beta c+w\,q_k-w'q_{k-M}$", ha="center", fontsize=10)
    axes.set(xlim=(0, 11.4), ylim=(0, 4.3))
    axes.axis("off")
    figure.savefig(Path(__file__).with_name("path.svg"), metadata={"Date": None})


def main() -> None:
    plt.rcParams.update({"font.size": 11, "svg.hashsalt": "staq"})
    draw_iteration()
    draw_path()


if __name__ == "__main__":
    main()
