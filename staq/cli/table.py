"""``staq table``: what runs ended with, when they got there and how long they kept it, from their rows."""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from staq.cli.options import number_from, part
from staq.cli.plot import Kind, kind_of, labels_of
from staq.cli.rollouts import read_rows
from staq.cli.runs import Config, read_log
from staq.hyperparameters import nearest

EXTREMES: dict[str, Callable[[np.ndarray], Any]] = {
    "largest": np.max,
    "smallest": np.min,
    "mean": np.mean,
    "median": np.median,
    "last": lambda v: v[-1],
}
"""Of a logged quantity over a run."""


def add_command(commands: Any) -> None:
    """``staq table``"""
    command = commands.add_parser(
        "table",
        help="final and best returns, and extremes of what was logged, as a Markdown table",
        description="A line per kind of run, with the value of every seed. RUN is a folder that staq train made; each "
        "environment has a table of its own.",
    )
    command.set_defaults(command=table)
    command.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    command.add_argument("--mode", choices=["greedy", "stochastic"], default="greedy")
    command.add_argument(
        "--threshold", type=number_from, help="also when it was first reached, and how often from then on"
    )
    command.add_argument("--last", type=part, help="also the mean over this last part of a run, such as 0.05")
    command.add_argument(
        "--quantity",
        action="append",
        default=[],
        metavar="[EXTREME:]TAG",
        help=f"also of a logged quantity the {', '.join(EXTREMES)} value of a run, such as largest:staq/mean_abs_q",
    )


def table(options: argparse.Namespace) -> None:
    for line in tables(options.runs, options.mode, options.threshold, options.quantity, options.last):
        print(line)


@dataclass(frozen=True)
class Seed:
    """One run's returns, in order."""

    folder: Path
    seed: int
    steps: np.ndarray
    returns: np.ndarray

    def mean_of_last(self, part: float) -> float:
        """Mean over the evaluations in the last part of the steps, at least that of the last one."""
        return float(self.returns[self.steps >= min((1 - part) * self.steps[-1], self.steps[-1])].mean())

    def half(self, which: int) -> float:
        """Mean over the evaluations of the first (0) or the second half (1) of the steps."""
        late = self.steps > self.steps[-1] / 2
        chosen = self.returns[late if which else ~late]
        return float(chosen.mean()) if len(chosen) else float("nan")


def tables(
    runs: list[Path], mode: str, threshold: float | None, quantities: list[str], last_part: float | None = None
) -> list[str]:
    """Markdown, a table per environment."""
    found: dict[str, dict[Kind, list[Seed]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        config, rows = Config.load(run), [row for row in read_rows(run) if row.mode == mode]
        if not rows:
            raise ValueError(f"{run} has no {mode} evaluation: there is nothing to tabulate.")
        steps, returns = np.array([row.timesteps for row in rows]), np.array([row.mean for row in rows])
        found[config.env][kind_of(config)].append(Seed(run, config.seed, steps, returns))
    _check_that_somebody_logged(quantities, runs)
    lines: list[str] = []
    for env, kinds in found.items():
        last = {seed.steps[-1] for seeds in kinds.values() for seed in seeds}
        at = f"at {max(last):,}" if len(last) == 1 else "at the end"
        columns = [env, f"{mode} {at}", "best", "mean, first half", "mean, second half"]
        if last_part is not None:
            columns.append(f"mean, last {last_part:.0%}")
        if threshold is not None:
            columns += [f"first ≥ {threshold:g} at", f"≥ {threshold:g} from then on"]
        columns += [name.replace(":", " ") for name in quantities]
        lines += [*([""] if lines else []), f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
        for label, seeds in zip(labels_of([dict(kind) for kind in kinds]), kinds.values(), strict=True):
            ordered = sorted(seeds, key=lambda seed: seed.seed)
            cells = [_cells(seed, threshold, quantities, last_part) for seed in ordered]
            lines.append(f"| {label} | {' | '.join(', '.join(values) for values in zip(*cells, strict=True))} |")
    return lines


def _check_that_somebody_logged(quantities: list[str], runs: list[Path]) -> None:
    """Some algorithms log what others do not; what no run has logged is a misspelt tag."""
    logs = [read_log(run) for run in runs] if quantities else []
    known = list(dict.fromkeys(tag for log in logs if log for tag in log[0]))
    for name in quantities:
        tag = name.rpartition(":")[2]
        if known and tag not in known:
            raise ValueError(f"--quantity {name}: no run has logged {tag!r}.{nearest(tag, known)}")


def _cells(seed: Seed, threshold: float | None, quantities: list[str], last_part: float | None) -> list[str]:
    cells = [_short(value) for value in (seed.returns[-1], seed.returns.max(), seed.half(0), seed.half(1))]
    if last_part is not None:
        cells.append(_short(seed.mean_of_last(last_part)))
    if threshold is not None:
        reached = seed.returns >= threshold
        since = reached[reached.argmax() :] if reached.any() else reached[:0]
        first = f"{seed.steps[reached.argmax()] / 1000:g}k" if reached.any() else "never"
        cells += [first, f"{since.sum()} of {len(since)}"]
    return cells + [_extreme(seed.folder, name) for name in quantities]


def _extreme(folder: Path, name: str) -> str:
    """Of a logged quantity over a run; a dash where it was not logged."""
    which, _, tag = name.rpartition(":")
    which = which or "largest"
    if which not in EXTREMES:
        raise ValueError(f"--quantity {name}: {which!r} is none of {', '.join(EXTREMES)}.")
    values = [float(row[tag]) for row in read_log(folder) if row.get(tag)]
    return _short(float(EXTREMES[which](np.array(values)))) if values else "–"


def _short(value: float) -> str:
    """Four digits are enough to compare."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
