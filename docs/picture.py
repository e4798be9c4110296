"""Draws the pictures of the documentation: python docs/picture.py"""

import csv
from pathlib import Path

import matplotlib
import numpy as np

matplotlib.use("svg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

BLUE, ORANGE, GREEN = "#0072B2", "#D55E00", "#009E73"
RESULTS = Path(__file__).parents[1] / "results"


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
    save(figure, "staq.svg")


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
    save(figure, "path.svg")


def save(figure: Figure, name: str) -> None:
    figure.savefig(Path(__file__).with_name(name), metadata={"Date": None})


def draw_averaging() -> None:
    """One state, three actions, Q-functions with independent errors: the policy of the last M of them."""
    rng = np.random.default_rng(0)
    true, noise, temperature, n = np.array([1.0, 0.7, 0.2]), 0.5, 0.1, 100
    beta = 0.95
    q = true + noise * rng.standard_normal((n, 3))
    figure, axes = plt.subplots(2, 1, figsize=(6.5, 4.2), sharex=True, layout="constrained")
    for axis, memory in zip(axes, (1, 50), strict=True):
        weights = (1 - beta) / (1 - beta**memory) * beta ** np.arange(memory)
        averages = [weights[: k + 1] @ q[k::-1][:memory] for k in range(n)]
        logits = np.array(averages) / temperature
        policy = np.exp(logits - logits.max(1, keepdims=True))
        policy /= policy.sum(1, keepdims=True)
        names = [f"action {i + 1}: q = {value:g}" for i, value in enumerate(true)]
        axis.stackplot(range(1, n + 1), policy.T, colors=[BLUE, ORANGE, GREEN], labels=names, alpha=0.85)
        axis.set(ylabel="probability", xlim=(1, n), ylim=(0, 1))
        axis.set_title(f"M = {memory}", loc="left", fontsize=11)
    axes[0].legend(ncols=3, fontsize=9, loc="lower right", bbox_to_anchor=(1, 1), frameon=False)
    axes[1].set_xlabel("iteration")
    save(figure, "averaging.svg")


def draw_weights() -> None:
    """What a Q-function still counts, by its age: η = 20, four actions, the first and the last entropy weight."""
    figure, axes = plt.subplots(figsize=(6.5, 2.9), layout="constrained")
    ages = np.arange(301)
    for scaled, colour in ((2.0, BLUE), (0.4, ORANGE)):
        beta = 20 / (20 + scaled / np.log(4))
        label = rf"entropy weight {scaled:g}: $\beta$ = {beta:.3f}, $\beta^{{300}}$ = {beta**300:.1g}"
        axes.plot(ages, beta**ages, color=colour, label=label)
    axes.set(xlabel="age $i$ of a Q-function, in iterations", ylabel=r"weight $\beta^i$", xlim=(0, 300), ylim=(0, 1))
    axes.legend(frameon=False)
    save(figure, "weights.svg")


def draw_overestimation() -> None:
    """A run that keeps what it has and one that loses it, from the rows of results/family."""
    figure, axes = plt.subplots(2, 1, figsize=(6.5, 4.4), sharex=True, layout="constrained")
    for seed, colour in ((1, BLUE), (2, ORANGE)):
        run = RESULTS / "family" / f"ac-mproj-{seed}"
        greedy = [row for row in rows(run / "evaluations.csv") if row["mode"] == "greedy"]
        axes[0].plot(*columns(greedy, "timesteps", "mean"), color=colour, label=f"seed {seed}")
        axes[1].plot(*columns(rows(run / "progress.csv"), "time/total_timesteps", "staq/mean_abs_q"), color=colour)
    axes[1].axhline(1200, color="#888888", linestyle="--")
    axes[1].text(0.02, 0.56, "dashed: 1,200, the most a state can be worth", transform=axes[1].transAxes, fontsize=9)
    axes[0].set(ylabel="greedy return")
    axes[1].set(ylabel="staq/mean_abs_q", yscale="log", xlabel="environment steps")
    axes[0].legend(frameon=False)
    save(figure, "overestimation.svg")


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def columns(table: list[dict[str, str]], *names: str) -> list[list[float]]:
    """Of the rows that have all of them."""
    complete = [row for row in table if all(row.get(name) for name in names)]
    return [[float(row[name]) for row in complete] for name in names]


def main() -> None:
    plt.rcParams.update({"font.size": 11, "svg.hashsalt": "staq"})
    draw_iteration()
    draw_path()
    draw_averaging()
    draw_weights()
    draw_overestimation()


if __name__ == "__main__":
    main()
