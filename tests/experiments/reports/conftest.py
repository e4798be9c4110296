"""Folders of runs as training leaves them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from staq.cli.rollouts import Returns, write_rows
from staq.experiments import plans as experiments
from staq.experiments.record import FINISHED, Planned, plan


def lay(
    run: Planned, returns: Sequence[float], finished: bool = True, late: int = 0, core_seconds: float = 0.01
) -> None:
    """A run's folder as training leaves it, with an evaluation every ``eval_every`` steps.

    :param core_seconds: that a step took
    """
    run.folder.mkdir(parents=True)
    run.config.save(run.folder, "staq experiment run")
    rows = []
    for i, mean in enumerate(returns):
        step = (i + 1) * run.config.eval_every + late
        rows += [
            Returns(step, mode, 20, mean - 100 * (mode != "greedy"), 0.0, mean, 10.0, 2.0 * step, core_seconds * step)
            for mode in ("greedy", "stochastic")
        ]
    write_rows(run.folder, rows)
    if finished:
        (run.folder / FINISHED).touch()


def planned(tmp_path: Path, **arguments: Any) -> list[Planned]:
    """Of two games and two memories at 20,000 steps: four evaluations."""
    games = {"envs": ["MinAtar/Breakout-v1", "MinAtar/Freeway-v1"], "variants": ["StaQ M=1", "StaQ M=50"]}
    return plan(experiments.load("memory"), tmp_path, **{"budget": 0.004, "seeds": 3} | games | arguments)
