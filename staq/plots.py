"""Learning curves from the rows of runs."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from staq.evaluation import Evaluation, read_rows
from staq.presets import defaults
from staq.runs import Config

# Okabe and Ito's colours, which stay apart for the colour-blind and in print.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
# Two-sided 97.5 % points of Student's t for 1, 2, … degrees of freedom; seeds are few.
STUDENT_T = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13)

Kind = tuple[tuple[str, str], ...]


def learning_curves(runs: list[Path], out: Path, mode: str = "greedy") -> Path:
    """One panel per environment, one line per kind of run: its mean and 95 % interval over seeds.

    A single seed has a line and no interval.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    panels: dict[str, dict[Kind, list[list[Evaluation]]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        config = Config.load(run)
        rows = [row for row in read_rows(run) if row.mode == mode]
        if not rows:
            raise ValueError(f"{run} has no {mode} evaluation yet: it writes one every {config.eval_every} steps.")
        panels[config.env][kind_of(config)].append(rows)
    figure, axes = plt.subplots(1, len(panels), figsize=(5.5 * len(panels), 3.8), squeeze=False, layout="constrained")
    for axis, (env, kinds) in zip(axes[0], panels.items(), strict=True):
        labels = labels_of([dict(kind) for kind in kinds])
        for (label, seeds), colour in zip(zip(labels, kinds.values(), strict=True), itertools.cycle(COLOURS)):
            _draw(axis, label, seeds, colour)
        axis.set(title=env, xlabel="environment steps", ylabel=f"{mode} return")
        axis.grid(alpha=0.3)
        axis.legend(frameon=False)
        axis.xaxis.set_major_formatter(matplotlib.ticker.EngFormatter(sep=""))
    figure.savefig(out, dpi=150)
    plt.close(figure)
    return out


def _draw(axis: Any, label: str, seeds: list[list[Evaluation]], colour: str) -> None:
    by_step = [{row.timesteps: row.mean for row in rows} for rows in seeds]
    steps = sorted(set.intersection(*(set(rows) for rows in by_step)))
    if not steps:
        raise ValueError(f"The runs of {label} were evaluated at different steps: plot them one by one.")
    values = np.array([[rows[step] for step in steps] for rows in by_step])  # [seeds, steps]
    mean, n = values.mean(0), len(values)
    axis.plot(steps, mean, color=colour, label=f"{label}, {n} seed{'s' if n > 1 else ''}", marker=".")
    if n > 1:
        half = STUDENT_T[min(n - 2, len(STUDENT_T) - 1)] * values.std(0, ddof=1) / math.sqrt(n)
        axis.fill_between(steps, mean - half, mean + half, color=colour, alpha=0.2, linewidth=0)


def kind_of(config: Config) -> Kind:
    """What makes two runs comparable as seeds of one another: every setting that training depends on but the seed."""
    settings = defaults() | config.hyperparameters | {"policy": config.policy, "n_envs": config.n_envs}
    return tuple(sorted((name, str(value)) for name, value in settings.items()))


def labels_of(kinds: list[dict[str, str]]) -> list[str]:
    """A name for each kind of run: its memory, and whatever else tells it from the others."""
    names = sorted(set().union(*kinds) - {"memory_size"})
    different = [name for name in names if len({kind[name] for kind in kinds}) > 1]
    return [
        ", ".join(
            [
                "exact PMD" if kind["memory_size"] == "None" else f"StaQ M={kind['memory_size']}",
                *(f"{name}={kind[name]}" for name in different),
            ]
        )
        for kind in kinds
    ]
