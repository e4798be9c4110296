"""Returns of an experiment's runs as arrays, and the scale on which environments are averaged."""

from __future__ import annotations

import json
import tomllib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np

from staq.evaluation import read_rows
from staq.experiments.plan import TIMING, Planned

RANDOM = {
    "CartPole-v1": 22.2,
    "Acrobot-v1": -495.0,
    "LunarLander-v3": -181.0,
    "MountainCar-v0": -200.0,
    "MinAtar/Asterix-v1": 0.47,
    "MinAtar/Breakout-v1": 0.38,
    "MinAtar/Freeway-v1": 0.57,
    "MinAtar/Seaquest-v1": 0.09,
    "MinAtar/SpaceInvaders-v1": 4.22,
}
"""Mean return of uniform actions: over 50 (MountainCar) to 1000 (CartPole) episodes."""


def paper(table: str) -> dict[str, Any]:
    """The paper's numbers: ``table_1``, final returns by environment and variant, or ``hours`` by variant."""
    content = tomllib.loads(resources.files(__package__).joinpath("paper.toml").read_text())
    numbers: dict[str, Any] = content[table]
    return numbers


def normalised(returns: np.ndarray, env: str) -> np.ndarray:
    """0 is a random policy, 1 the best of the paper's Table 1: it gives no constants of its own."""
    random, best = RANDOM[env], max(paper("table_1")[env].values())
    scaled: np.ndarray = (returns - random) / (best - random)
    return scaled


def can_be_normalised(env: str) -> bool:
    return env in RANDOM


@dataclass(frozen=True)
class Curves:
    """Greedy returns of one variant in one environment."""

    steps: np.ndarray
    """[evaluations]"""
    returns: np.ndarray
    """[seeds, evaluations]; NaN where a run has not come yet"""
    seeds: list[int]
    finished: list[bool]

    @property
    def final(self) -> np.ndarray:
        """The last evaluation of every finished run. [finished seeds]"""
        last: np.ndarray = self.returns[np.array(self.finished, dtype=bool), -1]
        return last


Results = dict[str, dict[str, Curves]]
"""By environment and variant, in the order of the experiment."""


def results(runs: Sequence[Planned], mode: str = "greedy") -> Results:
    """What has been evaluated so far."""
    cells: dict[str, dict[str, list[Planned]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        cells[run.config.env][run.variant].append(run)
    found: Results = {}
    for env, variants in cells.items():
        for variant, members in variants.items():
            curves = _curves(members, mode)
            if curves is not None:
                found.setdefault(env, {})[variant] = curves
    return found


def _curves(runs: list[Planned], mode: str) -> Curves | None:
    config = runs[0].config
    steps = np.arange(config.eval_every, config.timesteps + 1, config.eval_every)
    rows = {run.config.seed: [row for row in read_rows(run.folder) if row.mode == mode] for run in runs}
    begun = [run for run in runs if rows[run.config.seed]]
    if not begun:
        return None
    returns = np.full((len(begun), len(steps)), np.nan)
    for i, run in enumerate(begun):
        times = np.array([row.timesteps for row in rows[run.config.seed]])
        means = np.array([row.mean for row in rows[run.config.seed]])
        # An algorithm with other iterations is evaluated a little after: the evaluation nearest in time counts.
        for j, step in enumerate(steps[steps <= times[-1] + config.eval_every / 2]):
            returns[i, j] = means[np.abs(times - step).argmin()]
    finished = [run.state == "finished" for run in begun]
    return Curves(steps, returns, [run.config.seed for run in begun], finished)


def normalised_finals(found: Results, variants: list[str]) -> dict[str, np.ndarray]:
    """Per variant [seeds, envs], for the environments and seeds in which every one of them is finished."""
    envs = [env for env in found if can_be_normalised(env)]
    present = [name for name in variants if all(name in found[env] for env in envs)] if envs else []
    finals: dict[str, np.ndarray] = {}
    for name in present:
        columns = [normalised(found[env][name].final, env) for env in envs]
        shortest = min(map(len, columns))
        if shortest:
            finals[name] = np.stack([column[:shortest] for column in columns], axis=1)
    return finals


@dataclass(frozen=True)
class Timings:
    """Milliseconds per environment step, by variant."""

    total: dict[str, np.ndarray]
    """[rounds] that all variants have"""
    phases: dict[str, dict[str, float]]
    """Means over the rounds."""
    unit: str
    """The variant that the others are compared with: the first."""


def timings(runs: Sequence[Planned]) -> Timings:
    """What has been measured so far."""
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for run in runs:
        if run.state == "finished":
            found[run.variant].append(json.loads((run.folder / TIMING).read_text()))
    rounds = min(map(len, found.values()))
    total = {name: np.array([one["total_ms"] for one in several[:rounds]]) for name, several in found.items()}
    phases = {name: _mean_phases(several[:rounds]) for name, several in found.items()}
    return Timings(total, phases, unit=next(iter(total)))


def _mean_phases(rounds: list[dict[str, Any]]) -> dict[str, float]:
    """All of it is one phase where it is not divided."""
    several = [one["ms"] or {"all of it": one["total_ms"]} for one in rounds]
    return {phase: float(np.mean([ms[phase] for ms in several])) for phase in several[0]}
