"""Hyperparameters as data: one file per table of the paper, and one for the demo.

A file names what it is for and carries only departures from the algorithm's defaults.
"""

from __future__ import annotations

import fnmatch
import functools
from dataclasses import dataclass, field
from typing import Any

from staq import registry
from staq.baselines.hyperparameters import defaults as baseline_defaults
from staq.hyperparameters import NO_MEANING_HERE, defaults_of, nearest, not_here, only_of
from staq.registry import ALGORITHMS, load_evaluation, settings_elsewhere
from staq.storage import data_files


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
    n_envs: int = 50
    """Environments in parallel."""

    @property
    def evaluation(self) -> str:
        """The policy evaluation that its values are for."""
        return str(self.hyperparameters.get("evaluation", "replay"))

    @property
    def algorithms(self) -> list[str]:
        """Whose it is, by the names of the command line: a baseline's begins with its name, the others are ours."""
        return registry.with_presets(self.name)


def names() -> tuple[str, ...]:
    """Every preset."""
    return data_files.names(__name__)


@functools.cache  # a plan of hundreds of runs asks for each of them again and again
def load(name: str) -> Preset:
    """A preset by name; an unknown name or key is an error that names the nearest."""
    return Preset(name=name, **data_files.content(__name__, name, "preset"))


def for_environment(env_id: str, algo: str = "staq", evaluation: str = "replay") -> Preset:
    """The preset made for an environment and a policy evaluation; that for classic control where there is none."""
    wanted = family(evaluation)
    candidates = [preset for preset in map(load, names()) if algo in preset.algorithms and preset.evaluation == wanted]
    for preset in candidates:
        if any(fnmatch.fnmatch(env_id, pattern) for pattern in preset.environments):
            return preset
    return next((preset for preset in candidates if "classic" in preset.name), load("classic"))


def family(evaluation: str) -> str:
    """The policy evaluation whose presets serve: its own, or those of one that it derives from."""
    made_for, kind = {load(name).evaluation for name in names()}, load_evaluation(evaluation)
    return next((each for each in sorted(made_for) if issubclass(kind, load_evaluation(each))), "replay")


def defaults(algo: str = "staq", evaluation: str = "replay") -> dict[str, Any]:
    """An algorithm's hyperparameters and their defaults."""
    if ALGORITHMS[algo].ours:
        groups, evaluated = ALGORITHMS[algo].load().groups(evaluation), load_evaluation(evaluation)
        policy_kwargs = dict(evaluated.policy_defaults) or None
        return {"evaluation": evaluation} | defaults_of(groups, evaluated.defaults) | {"policy_kwargs": policy_kwargs}
    return baseline_defaults(algo)


def check_hyperparameters(values: dict[str, Any], algo: str = "staq") -> None:
    """Raises for a name that the algorithm does not have."""
    evaluation = values.get("evaluation", "replay")
    known, elsewhere, record = defaults(algo, evaluation), settings_elsewhere(evaluation), ALGORITHMS[algo]
    for key in values:
        if key in known:
            continue
        if record.ours and key in elsewhere:
            raise ValueError(not_here(key, elsewhere[key]))
        if record.ours and key in NO_MEANING_HERE:
            raise ValueError(f"{key!r} has no meaning for {record.class_name}: {NO_MEANING_HERE[key]}.")
        raise ValueError(f"{algo} has no hyperparameter {key!r}.{only_of(key) or nearest(key, known)}")
