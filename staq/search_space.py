"""Where good hyperparameters are looked for, by ``staq tune`` and by RL Zoo's sampler. Names are hyperparameters'."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Between:
    """A number between two, by its logarithm."""

    low: float
    high: float

    def suggested(self, trial: Any, name: str) -> float:
        return float(trial.suggest_float(name, self.low, self.high, log=True))

    def has(self, value: Any) -> bool:
        return isinstance(value, (int, float)) and self.low <= value <= self.high


@dataclass(frozen=True)
class OneOf:
    """One of a few values."""

    values: tuple[Any, ...]

    def suggested(self, trial: Any, name: str) -> Any:
        return trial.suggest_categorical(name, self.values)

    def has(self, value: Any) -> bool:
        return value in self.values


# Not reward_scale, since scaling rewards is dividing η and τ. Around our presets: a factor of about ten both ways.
SHARED: dict[str, Between | OneOf] = {"gamma": OneOf((0.95, 0.98, 0.99, 0.995, 0.999))}
SEARCH_SPACES: dict[str, dict[str, Between | OneOf]] = {
    "replay": {
        **SHARED,
        "learning_rate": Between(1e-5, 1e-3),
        "kl_weight": Between(2.0, 200.0),
        "ent_weight_init": Between(0.2, 10.0),
        "ent_weight_final": Between(0.02, 2.0),
        "memory_size": OneOf((1, 30, 100, 300)),
        "batch_size": OneOf((128, 256, 512)),
        "policy_update_interval": OneOf((1000, 2500, 5000)),
        "target_update_interval": OneOf((100, 200, 500)),
    },
    "lambda": {
        **SHARED,
        "learning_rate": Between(1e-4, 5e-3),
        "trace_decay": OneOf((0.5, 0.65, 0.8, 0.9, 0.95)),
        "kl_weight": Between(0.02, 2.0),
        "ent_weight_init": Between(0.02, 2.0),
        "ent_weight_final": Between(0.002, 0.2),
        "memory_size": OneOf((1, 5, 20)),
        "n_epochs": OneOf((1, 2, 4, 8)),
        "batch_size": OneOf((64, 128, 256)),
        "policy_update_interval": OneOf((1024, 2048, 4096)),
    },
}
"""By policy evaluation."""


def suggested(trial: Any, evaluation: str, known: Mapping[str, Any], n_envs: int) -> dict[str, Any]:
    """The hyperparameters that a trial of Optuna suggests.

    :param known: the algorithm's: what it does not have is not looked for
    :param n_envs: environments in parallel, which divide an iteration
    """
    space = SEARCH_SPACES[evaluation]
    values = {name: values.suggested(trial, name) for name, values in space.items() if name in known}
    interval = values["policy_update_interval"]
    return values | {"policy_update_interval": max(1, round(interval / n_envs)) * n_envs}
