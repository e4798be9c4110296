"""How far an experiment is, cell by cell, and how long it will take."""

from __future__ import annotations

import shutil
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from staq.cli.rollouts import read_rows
from staq.experiments.record import Planned

MINUTE, HOUR, DAY = 60, 3600, 86400
SHORT_OF_SPACE = 200
"""MB; the checkpoints of one MinAtar run grow to about twice that."""
FIRST_GUESS = {
    "MinAtar": {
        "ac": 12.0,
        "dqn": 4.5,
        "m-dqn": 5.5,
        "pqn": 0.12,
        "ppo": 1.0,
        "trpo": 1.2,
        "natgrad": 9.0,
        "staq": 8.0,
    },
    "continuous": {"staq": 6.5},
    "lambda": {"staq": 0.12},
    "classic": {
        "ac": 6.0,
        "dqn": 10.0,
        "m-dqn": 10.0,
        "pqn": 0.12,
        "ppo": 1.4,
        "trpo": 1.4,
        "natgrad": 5.6,
        "staq": 3.5,
    },
}
"""Seconds of one thread per thousand environment steps, before any run of the experiment itself has been timed:
roughly what CartPole's 200k, HalfCheetah's 300k and Breakout's first 10k steps took with each preset, two at a time;
with λ-returns, what the five games took on average, evaluations included."""

SECONDS_OF_A_TIMING = 35.0
"""Mostly its preparation: a full replay and a full stack."""


def table(runs: Sequence[Planned]) -> list[str]:
    """One line per environment and variant: runs in each state, and the share of steps that is done.

    What has another configuration than the experiment is not counted.
    """
    cells: dict[tuple[str, str], list[Planned]] = defaultdict(list)
    runs = [run for run in runs if not run.config_differs]
    for run in runs:
        cells[run.config.env, run.variant].append(run)
    width = max([len("environment"), *(len(env) for env, _ in cells)])
    wide = max([len("variant"), *(len(variant) for _, variant in cells)])
    lines = [f"{'environment':{width}}  {'variant':{wide}}  finished  begun  failed  steps"]
    for (env, variant), members in cells.items():
        counts = {state: sum(run.state == state for run in members) for state in ("finished", "begun", "failed")}
        share = sum(run.steps_done for run in members) / sum(run.config.timesteps for run in members)
        finished = f"{counts['finished']}/{len(members)}"
        lines.append(
            f"{env:{width}}  {variant:{wide}}  {finished:>8}  {counts['begun']:5}  {counts['failed']:6}  {share:5.0%}"
        )
    return lines


def failures(runs: Iterable[Planned]) -> list[str]:
    """Those that failed, and why."""
    return [f"{run.folder}: {run.error}" for run in runs if run.state == "failed"]


def stopped(runs: Iterable[Planned], out: Path) -> list[str]:
    """After the end of all workers: those that did not come to theirs, and what to do."""
    lines = [f"{run.folder}: stopped after {run.steps_done:,} steps" for run in runs if run.state == "begun"]
    free = shutil.disk_usage(out).free / 1e6
    if free < SHORT_OF_SPACE:
        lines.append(f"Only {free:.0f} MB are left on the disk of {out}: make room.")
    if lines:
        lines.append("What has been done is kept: run the same command again to go on.")
    return lines


def seconds_left(runs: Sequence[Planned], at_once: int) -> float:
    """By the runs of the same variant that have been timed, or else by a first guess."""
    rates: dict[tuple[str, str], list[float]] = defaultdict(list)
    for run in runs:
        evaluated = read_rows(run.folder)
        if evaluated:
            rates[run.config.env, run.variant].append(evaluated[-1].seconds / evaluated[-1].timesteps)

    def left(run: Planned) -> float:
        if run.timed:
            return SECONDS_OF_A_TIMING
        known = rates.get((run.config.env, run.variant))
        return (statistics.median(known) if known else first_guess(run)) * (run.config.timesteps - run.steps_done)

    each = [left(run) for run in runs if run.state != "finished"]
    return max(sum(each) / at_once, max(each, default=0.0))  # none is faster for others that run beside it


def first_guess(run: Planned) -> float:
    """Seconds per environment step."""
    kind = "continuous" if run.config.actions else "MinAtar" if run.config.env.startswith("MinAtar") else "classic"
    known = FIRST_GUESS["lambda" if run.config.hyperparameters.get("evaluation") == "lambda" else kind]
    algo = "ac" if run.config.algo.startswith("ac-") else run.config.algo
    return known.get(algo, known["staq"]) / 1000


def in_words(seconds: float) -> str:
    """About how long: 40 s, 12 min, 3.5 h, 9 days."""
    if seconds < 2 * MINUTE:
        return f"{seconds:.0f} s"
    if seconds < 2 * HOUR:
        return f"{seconds / MINUTE:.0f} min"
    return f"{seconds / HOUR:.1f} h" if seconds < 2 * DAY else f"{seconds / DAY:.0f} days"
