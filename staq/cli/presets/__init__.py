"""Hyperparameters as data: one file per table of the paper, and one for the demo.

A file names what it is for and carries only departures from the algorithm's defaults.
"""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass, field
from typing import Any

from staq import data_files
from staq.arguments import NO_MEANING_HERE, hyperparameters, nearest
from staq.family import FAMILY
from staq.rivals import RIVALS
from staq.rivals import class_of as rival_class


@dataclass(frozen=True)
class Preset:
    """One file of this folder."""

    name: str
    """The file's name."""
    title: str
    """Where the values come from."""
    environments: list[str]
    """Patterns of the environments for which it is chosen by itself."""
    policy: str
    """"MlpPolicy" or "CnnPolicy"."""
    timesteps: int
    """How long a run is."""
    hyperparameters: dict[str, Any] = field(default_factory=dict)
    """Departures from the algorithm's defaults."""
    algorithms: list[str] = field(default_factory=lambda: list(FAMILY))
    """Whose it is, by the names of the command line."""
    n_envs: int = 50
    """Environments in parallel."""


def names() -> list[str]:
    """Every preset."""
    return data_files.names(__name__)


def load(name: str) -> Preset:
    """A preset by name; an unknown name or key is an error that names the nearest."""
    return Preset(name=name, **data_files.content(__name__, name, "preset"))


def for_environment(env_id: str, algo: str = "staq") -> Preset:
    """The preset made for an environment; the paper's for classic control where there is none."""
    candidates = [preset for preset in map(load, names()) if algo in preset.algorithms]
    for preset in candidates:
        if any(fnmatch.fnmatch(env_id, pattern) for pattern in preset.environments):
            return preset
    return next(preset for preset in candidates if preset.name.endswith("classic"))


def algorithms() -> list[str]:
    """Every algorithm that there are presets for."""
    return [*FAMILY, *RIVALS]


def defaults(algo: str = "staq") -> dict[str, Any]:
    """An algorithm's hyperparameters and their defaults."""
    if algo in FAMILY:
        return hyperparameters(FAMILY[algo])
    in_steps = {"exploration_steps": None} if algo.endswith("dqn") else {"anneal_steps": None}
    return hyperparameters(rival_class(algo)) | in_steps


def check_hyperparameters(values: dict[str, Any], algo: str = "staq") -> None:
    """Raises for a name that the algorithm does not have."""
    for key in values:
        if key in defaults(algo):
            continue
        if algo in FAMILY and key in NO_MEANING_HERE:
            raise ValueError(f"{key!r} has no meaning for {FAMILY[algo].__name__}: {NO_MEANING_HERE[key]}.")
        raise ValueError(f"{algo} has no hyperparameter {key!r}.{nearest(key, list(defaults(algo)))}")
