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

from staq.cli.rollouts import read_rows
from staq.experiments.record import TIMING, Planned

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

ALMOST = 0.8
"""Share of a time after which a run that ended counts: its steps were chosen for about so long."""


def paper(table: str) -> dict[str, Any]:
    """The paper's numbers: ``table_1``, final returns by environment and variant, or ``hours`` by variant."""
    content = tomllib.loads(resources.files(__package__).joinpath("paper.toml").read_text("utf-8"))
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
    def final(self) -> dict[int, float]:
        """The last evaluation of every finished run, by seed."""
        return self._of_finished(self.returns[:, -1])

    @property
    def second_half(self) -> dict[int, float]:
        """Of every finished run the mean over the second half of its evaluations: a single one may be luck."""
        return self.between(self.steps[-1] / 2, self.steps[-1])

    def between(self, begin: float, end: float) -> dict[int, float]:
        """Of every finished run the mean over the evaluations after ``begin`` steps and not after ``end``."""
        return self._of_finished(self.returns[:, (begin < self.steps) & (self.steps <= end)].mean(1))

    def _of_finished(self, values: np.ndarray) -> dict[int, float]:
        rows = zip(self.seeds, values, self.finished, strict=True)
        return {seed: float(value) for seed, value, finished in rows if finished}

    def of_seeds(self, seeds: Sequence[int]) -> np.ndarray:
        """[seeds, evaluations]"""
        return self.returns[[self.seeds.index(seed) for seed in seeds]]


Results = dict[str, dict[str, Curves]]
"""By environment and variant, in the order of the experiment."""


def results(runs: Sequence[Planned]) -> Results:
    """What has been evaluated so far, of the runs that are what was planned."""
    cells: dict[str, dict[str, list[Planned]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        if not run.config_differs:
            cells[run.config.env][run.variant].append(run)
    found: Results = {}
    for env, variants in cells.items():
        for variant, members in variants.items():
            curves = _curves(members)
            if curves is not None:
                found.setdefault(env, {})[variant] = curves
    return found


def _curves(runs: list[Planned]) -> Curves | None:
    config = runs[0].config
    steps = np.arange(config.eval_every, config.timesteps + 1, config.eval_every)
    rows = {run.config.seed: [row for row in read_rows(run.folder) if row.mode == "greedy"] for run in runs}
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


Minutes = dict[str, dict[str, list[tuple[np.ndarray, np.ndarray]]]]
"""By environment and variant: of every seed the minutes of one core's training, and the greedy return after them."""


def against_minutes(runs: Sequence[Planned]) -> Minutes:
    """What has been evaluated so far, by the time that training has taken, evaluations left out."""
    found: Minutes = {}
    for run in runs:
        rows = [] if run.config_differs else [row for row in read_rows(run.folder) if row.mode == "greedy"]
        if rows:
            times, returns = np.array([[row.core_seconds / 60, row.mean] for row in rows]).T
            found.setdefault(run.config.env, {}).setdefault(run.variant, []).append((times, returns))
    return found


def after_minutes(seeds: Sequence[tuple[np.ndarray, np.ndarray]], minutes: float) -> np.ndarray:
    """The last evaluation until then, of every seed; NaN where none came so early, or the run not so far yet."""
    return np.array(
        [
            returns[times <= minutes][-1] if times[0] <= minutes and times[-1] >= ALMOST * minutes else np.nan
            for times, returns in seeds
        ]
    )


@dataclass(frozen=True)
class Finals:
    """Normalised final returns of what can be compared: the same environments for all, and whole seeds."""

    environments: list[str]
    """Those in which every variant has finished seeds enough."""
    seeds: dict[str, list[int]]
    """By variant, those finished in all of these environments."""
    scores: dict[str, np.ndarray]
    """By variant, [seeds, environments]"""


def normalised_finals(found: Results, variants: Sequence[str]) -> Finals:
    """Of variants that have finished anything."""
    scalable = [env for env in found if can_be_normalised(env)]
    present = [name for name in variants if any(name in found[env] and found[env][name].final for env in scalable)]

    def shared(environments: Sequence[str]) -> dict[str, set[int]]:
        """By variant, the seeds that are finished in all of these."""
        return {
            name: set.intersection(*(set(found[env][name].final if name in found[env] else ()) for env in environments))
            for name in present
        }

    def fewest(environments: Sequence[str]) -> int:
        return min(map(len, shared(environments).values()))

    # An environment that has just been begun must not take from the others the second seed, and so the interval.
    common: list[str] = []
    for env in sorted(scalable if present else [], key=lambda env: -fewest([env])):
        if fewest([*common, env]) >= (min(2, fewest(common)) if common else 1):
            common.append(env)
    common.sort(key=scalable.index)
    seeds = {name: sorted(of_all) for name, of_all in shared(common).items()} if common else {}
    scores = {}
    for name, whole in seeds.items():
        finals = {env: found[env][name].final for env in common}
        columns = [normalised(np.array([final[s] for s in whole]), env) for env, final in finals.items()]
        scores[name] = np.stack(columns, axis=1)
    return Finals(common, seeds, scores)


Timings = dict[str, dict[int, dict[str, Any]]]
"""What was measured, by variant and round."""


def timings(runs: Sequence[Planned]) -> Timings:
    """What has been measured so far."""
    found: Timings = defaultdict(dict)
    for run in runs:
        if run.state == "finished" and not run.config_differs:
            found[run.variant][run.config.seed] = json.loads((run.folder / TIMING).read_text())
    return dict(found)


def ratios(found: Timings, name: str, unit: str) -> np.ndarray:
    """Of a variant's time to another's, in the rounds that both have from the same machine."""
    a, b = found.get(name, {}), found.get(unit, {})
    rounds = [r for r in sorted(a.keys() & b.keys()) if a[r]["machine"] == b[r]["machine"]]
    return np.array([a[r]["total_ms"] / b[r]["total_ms"] for r in rounds])


def mean_phases(found: Timings) -> dict[str, dict[str, float]]:
    """Milliseconds of each phase, by variant; all of it is one phase where it is not divided."""
    means = {}
    for name, rounds in found.items():
        several = [one["ms"] or {"all of it": one["total_ms"]} for one in rounds.values()]
        means[name] = {phase: float(np.mean([ms[phase] for ms in several])) for phase in several[0]}
    return means
