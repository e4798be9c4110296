"""The paper's figures, drawn from rows: PNG to look at and SVG to print."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from staq.cli.plot import COLOURS, STYLES
from staq.experiments.record import Planned
from staq.experiments.reports.scores import Curves, Finals, Minutes, Results, normalised
from staq.experiments.reports.statistics import (
    Estimate,
    interquartile_curves,
    interquartile_means,
    mean_interval,
    performance_profiles,
)

MARKERS = "os^Dv<>PX*"
FEW = 12
"""Evaluations, fewer than which are marked one by one."""


def style_of(variants: list[str], name: str) -> dict[str, Any]:
    """The same look for a variant in every figure of a report."""
    return STYLES[variants.index(name) % len(STYLES)]


def saved(figure: Any, folder: Path, name: str) -> Path:
    with plt.rc_context({"svg.hashsalt": name}):  # the same rows give the same file
        figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
    figure.savefig(folder / f"{name}.png", dpi=110)
    plt.close(figure)
    return folder / f"{name}.png"


def _panels(n: int, height: float = 3.2) -> tuple[Any, list[Any]]:
    columns = min(n, 3)
    rows = math.ceil(n / columns)
    width = 6.4 if columns == 1 else 4.6 * columns
    figure, axes = plt.subplots(rows, columns, figsize=(width, height * rows), squeeze=False, layout="constrained")
    for unused in axes.flat[n:]:
        unused.axis("off")
    return figure, list(axes.flat[:n])


def _legend(figure: Any, axes: Sequence[Any]) -> None:
    """One for all panels, with what lies in any of them."""
    shown: dict[str, Any] = {}
    for axis in axes:
        handles, names = axis.get_legend_handles_labels()
        shown |= dict(zip(names, handles, strict=True))
    fitting = int(figure.get_figwidth() / 2.3)  # as many entries as fit side by side
    figure.legend(shown.values(), shown.keys(), loc="outside lower center", ncols=fitting, frameon=False)


def learning_curves(found: Results, variants: list[str], folder: Path, marks: dict[str, int] | None = None) -> Path:
    """Mean over seeds with its 95 % interval, or with each of two seeds as a thin line; a single seed has neither.

    :param marks: vertical lines, by what they mark
    """
    figure, axes = _panels(len(found))
    for axis, (env, cells) in zip(axes, found.items(), strict=True):
        for name, curves in cells.items():
            _curve(axis, curves, variants, name)
        for label, step in (marks or {}).items():
            axis.axvline(step, color="0.5", linewidth=0.8, linestyle="--")
            axis.annotate(label, (step, 1), xycoords=("data", "axes fraction"), fontsize=7, va="top", rotation=90)
        axis.set_title(env, fontsize=10)
        axis.set_xlabel("environment steps")
        axis.xaxis.set_major_formatter(matplotlib.ticker.EngFormatter(sep=""))
        axis.grid(alpha=0.3)
        # The runs fill the axis: the interval of a few seeds may reach far beyond.
        lowest = min(float(np.nanmin(curves.returns)) for curves in cells.values())
        highest = max(float(np.nanmax(curves.returns)) for curves in cells.values())
        margin = 0.08 * (highest - lowest) or 1.0
        axis.set_ylim(lowest - margin, highest + margin)
    axes[0].set_ylabel("greedy return")
    _legend(figure, axes)
    return saved(figure, folder, "learning_curves")


def _curve(axis: Any, curves: Curves, variants: list[str], name: str) -> None:
    n_seeds = (~np.isnan(curves.returns)).sum(0)  # [evaluations]
    steps, returns, n_seeds = curves.steps[n_seeds > 0], curves.returns[:, n_seeds > 0], n_seeds[n_seeds > 0]
    estimates = [mean_interval(column) for column in returns.T]
    # The interval of two seeds is 12.7 times as wide as they lie apart, and would cover the panel.
    shown = [e if n > 2 else Estimate(e.value) for e, n in zip(estimates, n_seeds, strict=True)]
    _line(axis, steps, shown, variants, name)
    if 2 in n_seeds:
        look = style_of(variants, name) | {"linewidth": 0.7, "alpha": 0.6}
        axis.plot(steps[n_seeds == 2], returns[:, n_seeds == 2].T, marker="." if len(steps) < FEW else None, **look)


def _line(axis: Any, steps: np.ndarray, estimates: Sequence[Estimate], variants: list[str], name: str) -> None:
    """Values and the band of their intervals, which is not there where one seed alone has come."""
    style = style_of(variants, name)
    # A few evaluations are points as well, and one is nothing else; hollow, since they often coincide.
    marker = MARKERS[variants.index(name) % len(MARKERS)] if len(steps) < FEW else None
    axis.plot(steps, [e.value for e in estimates], label=name, marker=marker, markerfacecolor="none", **style)
    low, high = np.array([(e.low, e.high) for e in estimates], dtype=float).T
    if len(steps) == 1:
        axis.vlines(steps, low, high, color=style["color"], alpha=0.4)
    axis.fill_between(steps, low, high, color=style["color"], alpha=0.15, linewidth=0)


def minutes_curves(found: Minutes, variants: list[str], marks: Sequence[float], folder: Path) -> Path:
    """Every seed's greedy return against the minutes that its training took, and their mean where all have come."""
    figure, axes = _panels(len(found))
    for axis, (env, cells) in zip(axes, found.items(), strict=True):
        for name, seeds in cells.items():
            look = style_of(variants, name)
            for times, returns in seeds:
                axis.plot(times, returns, **look | {"linewidth": 0.6, "alpha": 0.5})
            ends = max(times[0] for times, _ in seeds), min(times[-1] for times, _ in seeds)
            common = np.linspace(*ends, 100)
            axis.plot(common, np.mean([np.interp(common, *seed) for seed in seeds], axis=0), label=name, **look)
        for minutes in marks:
            axis.axvline(minutes, color="0.5", linewidth=0.8, linestyle="--")
        axis.set(title=env, xlabel="minutes of one core's training", xlim=(0, 1.1 * max(marks)))
        axis.title.set_fontsize(10)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("greedy return")
    _legend(figure, axes)
    return saved(figure, folder, "minutes")


def final_boxes(found: Results, variants: list[str], folder: Path) -> Path | None:
    """Final returns of the finished runs, each a dot, with quartiles where there are enough of them."""
    panels = {env: {n: list(c.final.values()) for n, c in cells.items() if c.final} for env, cells in found.items()}
    panels = {env: cells for env, cells in panels.items() if cells}
    if not panels:
        return None
    figure, axes = _panels(len(panels), height=0.9 + 0.28 * len(variants))
    for axis, (env, cells) in zip(axes, panels.items(), strict=True):
        names = [name for name in variants if name in cells][::-1]
        for y, name in enumerate(names):
            colour = style_of(variants, name)["color"]
            if len(cells[name]) > 2:
                axis.boxplot(
                    cells[name], positions=[y], orientation="horizontal", widths=0.6, showfliers=False,
                    medianprops={"color": colour}, manage_ticks=False,
                )  # fmt: skip
            axis.plot(cells[name], np.full(len(cells[name]), y), "o", color=colour, markersize=4, alpha=0.8)
        axis.set_yticks(range(len(names)), names, fontsize=8)
        axis.set_title(env, fontsize=10)
        axis.set_xlabel("greedy return at the end")
        axis.grid(alpha=0.3, axis="x")
    return saved(figure, folder, "final_boxes")


def aggregate(finals: dict[str, np.ndarray], variants: list[str], folder: Path) -> tuple[Path, dict[str, Estimate]]:
    """Interquartile means of the normalised final returns."""
    estimates = interquartile_means(finals)
    figure, axis = plt.subplots(figsize=(7, 0.9 + 0.38 * len(estimates)), layout="constrained")
    for y, (name, estimate) in enumerate(reversed(estimates.items())):
        colour = style_of(variants, name)["color"]
        if estimate.low is not None and estimate.high is not None:
            axis.plot([estimate.low, estimate.high], [y, y], color=colour, linewidth=6, alpha=0.35)
        axis.plot(estimate.value, y, "|", color=colour, markersize=14, markeredgewidth=2.5)
    axis.set_yticks(range(len(estimates)), list(estimates)[::-1])
    axis.set_ylim(-0.6, len(estimates) - 0.4)
    axis.set_xlabel("IQM of the final return (0 a uniform policy, 1 the paper's best)")
    axis.grid(alpha=0.3, axis="x")
    return saved(figure, folder, "aggregate"), estimates


def aggregate_curves(found: Results, finals: Finals, variants: list[str], folder: Path) -> Path:
    """Fig. 2: the interquartile mean over all environments, step by step, of the seeds that are finished in all."""
    steps = found[finals.environments[0]][next(iter(finals.seeds))].steps
    scores = {
        name: np.stack([normalised(found[env][name].of_seeds(seeds), env) for env in finals.environments], axis=1)
        for name, seeds in finals.seeds.items()
    }  # [seeds, envs, evaluations] each
    figure, axis = plt.subplots(figsize=(6, 4), layout="constrained")
    for name, values in scores.items():
        _line(axis, steps, interquartile_curves({name: values})[name], variants, name)
    axis.set(xlabel="environment steps", ylabel="interquartile mean of normalised return")
    axis.xaxis.set_major_formatter(matplotlib.ticker.EngFormatter(sep=""))
    axis.grid(alpha=0.3)
    axis.legend(frameon=False, fontsize=8)
    return saved(figure, folder, "aggregate_curves")


def random_policy(counts: dict[str, tuple[int, int, int]], folder: Path) -> Path:
    """How often a uniform policy reaches the goal, against how long it holds its actions."""
    figure, axis = plt.subplots(figsize=(5, 3.2), layout="constrained")
    shares = [100 * reached / max(ended, 1) for _, reached, ended in counts.values()]
    bars = axis.bar(["not held" if rate == "none" else f"λ = {rate}" for rate in counts], shares, color=COLOURS[0])
    axis.bar_label(bars, [str(reached) for _, reached, _ in counts.values()], fontsize=8)
    axis.set_ylabel("episodes that reach the goal, %")
    return saved(figure, folder, "random_policy")


def entropies(runs: Sequence[Planned], variants: list[str], folder: Path) -> Path | None:
    """Entropy of the policies that are learned, with that of the uniform one."""
    figure, axis = plt.subplots(figsize=(5, 3.2), layout="constrained")
    labelled: set[str] = set()
    for run in runs:
        path = run.folder / "progress.csv"
        if run.config_differs or not path.exists():
            continue
        with path.open() as file:
            rows = [row for row in csv.DictReader(file) if row.get("staq/policy_entropy")]
        if rows:
            steps = [int(row["time/total_timesteps"]) for row in rows]
            label = None if run.variant in labelled else run.variant
            labelled.add(run.variant)
            values = [float(row["staq/policy_entropy"]) for row in rows]
            axis.plot(steps, values, label=label, alpha=0.8, **style_of(variants, run.variant))
    if not axis.lines:
        plt.close(figure)
        return None
    axis.axhline(math.log(3), color="0.4", linestyle="--", label="uniform, ln 3")
    axis.set(xlabel="environment steps", ylabel="entropy")
    axis.xaxis.set_major_formatter(matplotlib.ticker.EngFormatter(sep=""))
    axis.legend(frameon=False, fontsize=8)
    return saved(figure, folder, "entropies")


def profiles(finals: dict[str, np.ndarray], variants: list[str], folder: Path) -> Path:
    """Share of runs that end above a score."""
    everything = np.concatenate([values.flatten() for values in finals.values()])
    lowest, highest = float(everything.min()), float(everything.max())
    thresholds = np.linspace(min(0.0, lowest - 0.02), max(1.0, highest + 0.02), 80)
    figure, axis = plt.subplots(figsize=(6, 3.6), layout="constrained")
    for name, (shares, bounds) in performance_profiles(finals, thresholds).items():
        style = style_of(variants, name)
        axis.plot(thresholds, shares, label=name, **style)
        if bounds is not None:
            axis.fill_between(thresholds, *bounds, color=style["color"], alpha=0.12, linewidth=0)
    axis.set(xlabel="normalised final return", ylabel="share of runs above it", ylim=(-0.02, 1.02))
    axis.grid(alpha=0.3)
    axis.legend(frameon=False, fontsize=8)
    return saved(figure, folder, "profiles")


def phases(ms: dict[str, dict[str, float]], folder: Path) -> Path:
    """Milliseconds of a step, phase upon phase."""
    figure, axis = plt.subplots(figsize=(7, 0.9 + 0.35 * len(ms)), layout="constrained")
    names, starts = list(ms)[::-1], np.zeros(len(ms))
    for colour, phase in zip(COLOURS, dict.fromkeys(phase for of_one in ms.values() for phase in of_one), strict=False):
        widths = np.array([ms[name].get(phase, 0.0) for name in names])
        bars = axis.barh(names, widths, left=starts, color=colour, label=phase, edgecolor="white", linewidth=0.5)
        starts += widths
    axis.bar_label(bars, [f"{total:.1f}" for total in starts], padding=3, fontsize=8)
    axis.set_xlabel("milliseconds per environment step")
    axis.set_xlim(0, 1.1 * max(starts))
    axis.grid(alpha=0.3, axis="x")
    figure.legend(loc="outside upper center", ncols=7, frameon=False, fontsize=8)
    return saved(figure, folder, "phases")
