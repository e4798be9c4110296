"""Hyperparameters as data: one file per table of the paper, and one for the demo.

A file names what it is for and carries only departures from the algorithm's defaults.
"""

from __future__ import annotations

import fnmatch
import inspect
import tomllib
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from staq.algorithm import StaQ
from staq.arguments import NO_MEANING_HERE, nearest


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


def names() -> list[str]:
    """Every preset."""
    return sorted(file.name.removesuffix(".toml") for file in _files())


def load(name: str) -> Preset:
    """A preset by name; an unknown name or key is an error that names the nearest."""
    if name not in names():
        raise ValueError(f"There is no preset {name!r}.{nearest(name, names())} Presets: {', '.join(names())}.")
    content = tomllib.loads(resources.files(__name__).joinpath(f"{name}.toml").read_text())
    preset = Preset(name=name, **content)
    check_hyperparameters(preset.hyperparameters)
    return preset


def for_environment(env_id: str) -> Preset:
    """The preset made for an environment; the paper's for classic control where there is none."""
    for name in names():
        preset = load(name)
        if any(fnmatch.fnmatch(env_id, pattern) for pattern in preset.environments):
            return preset
    return load("classic")


def defaults() -> dict[str, Any]:
    """StaQ's hyperparameters and their defaults."""
    parameters = inspect.signature(StaQ.__init__).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not p.empty and p.name not in _NOT_HYPERPARAMETERS}


def check_hyperparameters(values: dict[str, Any]) -> None:
    """Raises for a name that the algorithm does not have."""
    for key in values:
        if key in NO_MEANING_HERE:
            raise ValueError(f"{key!r} has no meaning for StaQ: {NO_MEANING_HERE[key]}.")
        if key not in defaults():
            raise ValueError(f"StaQ has no hyperparameter {key!r}.{nearest(key, list(defaults()))}")


# Of StaQ's arguments, those that say where and how loudly it runs rather than what it computes.
_NOT_HYPERPARAMETERS = {"tensorboard_log", "verbose", "seed", "device", "_init_setup_model"}


def _files() -> list[Any]:
    return [file for file in resources.files(__name__).iterdir() if file.name.endswith(".toml")]
