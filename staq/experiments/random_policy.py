"""How often a uniform policy that holds its actions reaches a sparse reward: the left panel of App. B.3's figure."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from gymnasium import spaces

from staq.actions import Factors
from staq.envs.make import make_envs
from staq.experience.behaviour import Behaviour, BehaviourName
from staq.storage.atomic_files import replace_text

N_ENVS = 50
FILE = "random_policy.csv"
SECONDS_PER_STEP = 2e-5
"""Of MountainCar on one thread, as measured: only for the estimate of an experiment's time."""


def episodes_that_reach_the_goal(env_id: str, rate: float | None, steps: int, seed: int) -> tuple[int, int]:
    """Of a uniform policy over so many steps. → (episodes that were terminated, all episodes)

    :param rate: λ of the Poisson distribution of how long an action is held; None does not hold any
    """
    env = make_envs(env_id, N_ENVS)
    env.seed(seed)
    assert isinstance(env.action_space, spaces.Discrete)
    n_actions = int(env.action_space.n)
    generator = torch.Generator().manual_seed(seed)
    name: BehaviourName = "softmax" if rate is None else "sticky"
    behaviour = Behaviour(name, N_ENVS, 0.0, rate or 1.0, generator, Factors([n_actions]))
    logits, reached, ended = torch.zeros(N_ENVS, n_actions), 0, 0
    env.reset()
    for _ in range(steps // N_ENVS):
        _, _, dones, infos = env.step(behaviour.act(logits).numpy())
        behaviour.end_episodes(torch.from_numpy(dones))
        for i in np.flatnonzero(dones):
            ended += 1
            reached += not infos[i].get("TimeLimit.truncated", False)
    env.close()
    return reached, ended


def count(env_id: str, rates: Sequence[float], steps: int, folder: Path, report: Callable[[str], None]) -> None:
    """One row per rate, written when it is known: a rerun goes on with the next."""
    known = read(folder)
    for label, rate in _uncounted(rates, folder).items():
        report(f"uniform, λ = {label}")
        reached, ended = episodes_that_reach_the_goal(env_id, rate, steps, seed=0)
        known[label] = (steps, reached, ended)
        lines = ["rate,steps,reached,episodes", *(",".join(map(str, (name, *row))) for name, row in known.items())]
        replace_text(folder / FILE, "\n".join(lines) + "\n")


def seconds_left(rates: Sequence[float], steps: int, folder: Path) -> float:
    """About how long ``count`` will take."""
    return SECONDS_PER_STEP * steps * len(_uncounted(rates, folder))


def _uncounted(rates: Sequence[float], folder: Path) -> dict[str, float | None]:
    """Rates without a row yet, by their label there; None does not hold any action."""
    labels = {"none": None, **{f"{rate:g}": rate for rate in rates}}
    known = read(folder)
    return {label: rate for label, rate in labels.items() if rates and label not in known}


def read(folder: Path) -> dict[str, tuple[int, int, int]]:
    """(steps, episodes that reached the goal, all episodes) by rate."""
    path = folder / FILE
    if not path.exists():
        return {}
    with path.open() as file:
        return {r["rate"]: (int(r["steps"]), int(r["reached"]), int(r["episodes"])) for r in csv.DictReader(file)}
