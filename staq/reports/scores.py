"""Returns of an experiment's runs as arrays, and the scale on which environments are averaged."""

from __future__ import annotations

import tomllib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

import numpy as np

from staq.evaluation import read_rows
from staq.experiments.plan import Planned

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


def table_1() -> dict[str, dict[str, float]]:
    """The paper's final returns, by environment and variant."""
    content = tomllib.loads(resources.files(__package__).joinpath("paper.toml").read_text())
    table: dict[str, dict[str, float]] = content["table_1"]
    return table


def normalised(returns: np.ndarray, env: str) -> np.ndarray:
    """0 is a random policy, 1 the best of the paper's Table 1: it gives no constants of its own."""
    random, best = RANDOM[env], max(table_1()[env].values())
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
