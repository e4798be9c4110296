"""Hyperparameters as data: one file per table of the paper, and one for the demo.

A file names what it is for and carries only departures from the algorithm's defaults.
"""

from __future__ import annotations

import fnmatch
import tomllib
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

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
    return sorted(file.name.removesuffix(".toml") for file in _files())


def load(name: str) -> Preset:
    """A preset by name; an unknown name or key is an error that names the nearest."""
    if name not in names():
        raise ValueError(f"There is no preset {name!r}.{nearest(name, names())} Presets: {', '.join(names())}.")
    content = tomllib.loads(resources.files(__name__).joinpath(f"{name}.toml").read_text())
    return Preset(name=name, **content)


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
    return hyperparameters(rival_class(algo)) | ({"exploration_steps": None} if algo.endswith("dqn") else {})


def check_hyperparameters(values: dict[str, Any], algo: str = "staq") -> None:
    """Raises for a name that the algorithm does not have."""
    for key in values:
        if key in defaults(algo):
            continue
        if algo in FAMILY and key in NO_MEANING_HERE:
            raise ValueError(f"{key!r} has no meaning for {FAMILY[algo].__name__}: {NO_MEANING_HERE[key]}.")
        raise ValueError(f"{algo} has no hyperparameter {key!r}.{nearest(key, list(defaults(algo)))}")


def _files() -> list[Any]:
    return [file for file in resources.files(__name__).iterdir() if file.name.endswith(".toml")]
