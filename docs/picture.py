"""Draws docs/staq.svg, the picture in the README: python docs/picture.py"""

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


def main() -> None:
    plt.rcParams.update({"font.size": 11, "svg.hashsalt": "staq"})
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


if __name__ == "__main__":
    main()
