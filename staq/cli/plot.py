"""``staq plot``: learning curves from the rows of runs."""

from __future__ import annotations

import argparse
import itertools
import math
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from staq.cli.presets import defaults
from staq.cli.rollouts import Returns, read_rows
from staq.cli.runs import Config
from staq.registry import ALGORITHMS

# Okabe and Ito's colours, which stay apart for the colour-blind and in print.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES: tuple[Any, ...] = ("-", "--", ":", "-.")
STYLES = [
    {"color": COLOURS[i % len(COLOURS)], "linestyle": DASHES[i % len(DASHES)]}
    for i in range(len(COLOURS) * len(DASHES))
]
"""Neighbours differ in colour and in dashes, so that either tells them apart."""
SEEDS_OF_AN_INTERVAL = 3
"""Of two, the 95 % interval is twelve times as wide as they are apart, and says nothing."""

Kind = tuple[tuple[str, str], ...]


def add_command(commands: Any) -> None:
    """``staq plot``"""
    command = commands.add_parser("plot", help="learning curves of one or more runs")
    command.set_defaults(command=plot)
    command.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    command.add_argument("--out", type=Path, default=Path("learning_curves.png"))
    command.add_argument("--mode", choices=["greedy", "stochastic"], default="greedy")
    command.add_argument("--apart", action="store_true", help="a panel for each kind of run, not for each environment")


def plot(options: argparse.Namespace) -> None:
    for line in learning_curves(options.runs, options.out, options.mode, options.apart):
        print(line)
    print(options.out)


def learning_curves(runs: list[Path], out: Path, mode: str = "greedy", apart: bool = False) -> list[str]:
    """One panel per environment, one line per kind of run: its mean and 95 % interval over seeds; thin lines are seeds.

    Fewer than three seeds have lines and no interval. What runs of unequal length do not share is drawn thin.
    Returns one line of text per kind: what it ended with.

    :param apart: a panel per kind of run instead, on the same axes, for more of them than one panel can hold
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    found: dict[str, dict[Kind, list[list[Returns]]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        config = Config.load(run)
        rows = [row for row in read_rows(run) if row.mode == mode]
        if not rows:
            raise ValueError(f"{run} has no {mode} evaluation yet: it writes one every {config.eval_every} steps.")
        found[config.env][kind_of(config)].append(rows)
    panels: list[tuple[str, list[Curve], list[Curve]]] = []  # environment, curves in the panel, curves it is scaled for
    for env, kinds in found.items():
        labels = labels_of([dict(kind) for kind in kinds])
        curves = [seed_curve(label, seeds) for label, seeds in zip(labels, kinds.values(), strict=True)]
        panels += [(env, [curve], curves) for curve in curves] if apart else [(env, curves, curves)]
    columns = min(len(panels), 4 if apart else 3)
    lines = math.ceil(len(panels) / columns)
    size = (3.4 * columns, 2.8 * lines) if apart else (5 * columns, 3.6 * lines)
    figure, axes = plt.subplots(lines, columns, figsize=size, squeeze=False, layout="constrained")
    for unused in axes.flat[len(panels) :]:
        unused.axis("off")
    for axis, (env, curves, scale) in zip(axes.flat, panels, strict=False):
        for curve, style in zip(curves, itertools.cycle(STYLES), strict=False):
            _draw(axis, curve, style)
        drawn = [seed for curve in scale for seed in curve.seeds]
        returns = [value for seed in drawn for value in seed.values()]
        # A few rows that hardly differ are not to look like a rise: the axis has a tenth of their size at least.
        margin = max(0.05 * (max(returns) - min(returns)), 0.05 * max(map(abs, returns))) or 1.0
        axis.set_ylim(min(returns) - margin, max(returns) + margin)
        axis.set_xlim(0, 1.02 * max(max(seed) for seed in drawn))
        axis.set(title=env, xlabel="environment steps", ylabel=f"{mode} return")
        axis.grid(alpha=0.3)
        axis.xaxis.set_major_formatter(matplotlib.ticker.EngFormatter(sep=""))
        if apart:
            axis.set_title(f"{curves[0].title}\n{env}", fontsize="medium")
        else:
            axis.legend(frameon=False)
    figure.savefig(out, dpi=110)
    plt.close(figure)
    return [f"{env}  {curve.final()}" for env, curves, _ in panels for curve in curves]


@dataclass(frozen=True)
class Curve:
    """Mean over seeds and half the width of its 95 % interval (none below three), at the steps they share."""

    label: str
    n_seeds: int
    steps: list[int]
    each: np.ndarray
    """[seeds, steps]"""
    half_width: np.ndarray | None
    seeds: list[dict[int, float]]
    """Of each seed its returns by step, whole."""

    @property
    def mean(self) -> np.ndarray:
        means: np.ndarray = self.each.mean(0)
        return means

    @property
    def title(self) -> str:
        return f"{self.label}, {self.n_seeds} seed{'s' if self.n_seeds > 1 else ''}"

    def final(self) -> str:
        """What it ended with, and whether some of its runs went on."""
        spread = "" if self.half_width is None else f" ± {self.half_width[-1]:.1f} (95 %)"
        if self.n_seeds == 2:
            spread = " ({:.1f} and {:.1f})".format(*sorted(self.each[:, -1]))
        longest = max(max(seed) for seed in self.seeds)
        cut = f"; the longest has {longest}, and means end with the shortest" if longest > self.steps[-1] else ""
        return f"{self.title}: {self.mean[-1]:.1f}{spread} at {self.steps[-1]} steps{cut}"


def seed_curve(label: str, seeds: list[list[Returns]]) -> Curve:
    """Seeds are the unit: episodes of one seed say nothing about another."""
    by_step = [{row.timesteps: row.mean for row in rows} for rows in seeds]
    steps = sorted(set.intersection(*(set(rows) for rows in by_step)))
    if not steps:
        raise ValueError(f"The runs of {label} were evaluated at different steps: plot them one by one.")
    values = np.array([[rows[step] for step in steps] for rows in by_step])  # [seeds, steps]
    n = len(values)
    if n < SEEDS_OF_AN_INTERVAL:
        return Curve(label, n, steps, values, None, by_step)
    half_width = stats.t.ppf(0.975, n - 1) * values.std(0, ddof=1) / math.sqrt(n)
    return Curve(label, n, steps, values, half_width, by_step)


def _draw(axis: Any, curve: Curve, style: dict[str, Any]) -> None:
    axis.plot(curve.steps, curve.mean, label=curve.title, marker=".", **style)
    if curve.half_width is not None:
        low, high = curve.mean - curve.half_width, curve.mean + curve.half_width
        axis.fill_between(curve.steps, low, high, color=style["color"], alpha=0.15, linewidth=0)
    if curve.n_seeds > 1:
        for seed in curve.seeds:
            axis.plot(list(seed), list(seed.values()), color=style["color"], linewidth=0.7, alpha=0.6)


def kind_of(config: Config) -> Kind:
    """What makes two runs comparable as seeds of one another: every setting that training depends on but the seed."""
    # "factored" is what a continuous space gets anyway.
    actions = config.actions or "factored"
    own = {"algo": config.algo, "policy": config.policy, "n_envs": config.n_envs, "actions": actions}
    evaluation = config.hyperparameters.get("evaluation", "replay")
    settings = defaults(config.algo, evaluation) | config.hyperparameters | own
    return tuple(sorted((name, _in_words(value)) for name, value in settings.items()))


def _in_words(value: Any) -> str:
    """10 and 10.0 are the same setting."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def labels_of(kinds: list[dict[str, str]]) -> list[str]:
    """A name for each kind of run: its algorithm, and whatever tells it from others of the same algorithm."""
    labels = []
    for kind in kinds:
        siblings = [other for other in kinds if _title(other) == _title(kind)]
        alike = [other for other in siblings if other.get("evaluation") == kind.get("evaluation")]
        # Another evaluation has other defaults: its name says so.
        differing = ["evaluation"] if len(alike) < len(siblings) else []
        differing += [name for name in sorted(kind) if len({other[name] for other in alike}) > 1]
        labels.append(", ".join([_title(kind), *(f"{name}={kind[name]}" for name in differing)]))
    return labels


def _title(kind: dict[str, str]) -> str:
    if kind["algo"] == "staq" and kind["memory_size"] != "None":
        return f"StaQ M={kind['memory_size']}"
    return ALGORITHMS["exact-pmd" if kind["algo"] == "staq" else kind["algo"]].title
