"""Hyperparameters of the baselines: SB3's own arguments, and what presets say in steps."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from staq.baselines.munchausen_dqn import Munchausen
from staq.hyperparameters import (
    FRACTION,
    NUMBER,
    POSITIVE,
    RATE,
    Requirement,
    Shared,
    at_least,
    check,
    defaults_of,
    is_number,
    settings_of,
)
from staq.policy_evaluation.replay_regression import ReplayRegression
from staq.registry import ALGORITHMS

SHARED = ("learning_rate", "batch_size", "gamma", "buffer_size", "gradient_steps", "target_update_interval")
"""Names that mean in SB3 what they mean here."""
REQUIREMENTS: dict[str, Requirement] = {
    **{name: settings_of([Shared, ReplayRegression.Settings])[name].metadata["must_be"] for name in SHARED},
    **{name: each.metadata["must_be"] for name, each in settings_of([Munchausen]).items()},
    "anneal_steps": at_least(1),
    "exploration_steps": at_least(1),
    "exploration_fraction": Requirement(lambda v: is_number(v) and 0 < v <= 1, "a number above 0 and at most 1"),
    "exploration_initial_eps": FRACTION,
    "exploration_final_eps": FRACTION,
    "n_steps": at_least(1),
    "n_epochs": at_least(1),
    "clip_range": RATE,
    "ent_coef": NUMBER,
    "vf_coef": NUMBER,
    "gae_lambda": FRACTION,
    "trace_decay": FRACTION,
    "max_grad_norm": POSITIVE,
    "target_kl": Requirement(lambda v: v is None or POSITIVE.holds(v), "a positive number"),
}
# Of SB3's arguments, those that say where and how loudly it runs rather than what it computes.
_NOT_HYPERPARAMETERS = {"stats_window_size", "tensorboard_log", "verbose", "seed", "device", "_init_setup_model"}


def check_each(values: Mapping[str, Any]) -> None:
    """Raises for the first value that cannot work, with its name and what it must be."""
    for name, must_be in REQUIREMENTS.items():
        if name in values:
            check(name, values[name], must_be)


def defaults(algo: str) -> dict[str, Any]:
    """A baseline's hyperparameters and their defaults: SB3's signature, and what our presets add to it."""
    record = ALGORITHMS["dqn" if algo == "m-dqn" else algo]
    parameters = inspect.signature(record.load()).parameters.values()
    named = {p.name: p.default for p in parameters if p.default is not p.empty and p.name not in _NOT_HYPERPARAMETERS}
    if algo == "m-dqn":
        named |= defaults_of([Munchausen])
    return named | ({"exploration_steps": None} if algo.endswith("dqn") else {"anneal_steps": None})
