"""The algorithms that StaQ is measured against, from stable-baselines3: built from presets, run like our own."""

from __future__ import annotations

from typing import Any

from gymnasium import spaces
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.utils import LinearSchedule
from torch import nn

from staq.rivals.m_dqn import MDQN
from staq.rivals.networks import SmallImage, small_image

__all__ = ["MDQN", "RIVALS", "SmallImage", "build", "class_of", "small_image"]

RIVALS = ("dqn", "m-dqn", "ppo", "trpo")
"""By the names of the command line."""

ANNEALED = "lin_"
"""RL Zoo's way to write a value that falls linearly to zero: lin_0.1. Here over ``anneal_steps``, or over the run."""


def class_of(algo: str) -> type[BaseAlgorithm]:
    """The algorithm of a name."""
    if algo == "trpo":
        try:
            from sb3_contrib import TRPO
        except ImportError as error:
            raise ModuleNotFoundError("TRPO is in sb3-contrib: pip install 'staq[rivals]'") from error
        return TRPO
    classes: dict[str, type[BaseAlgorithm]] = {"dqn": DQN, "m-dqn": MDQN, "ppo": PPO}
    return classes[algo]


def build(
    algo: str, policy: str, env: Any, hyperparameters: dict[str, Any], timesteps: int, seed: int, device: str
) -> BaseAlgorithm:
    """A model from a preset's plain values.

    ``exploration_steps`` and ``anneal_steps`` say in steps what SB3 wants as a fraction of the run; CnnPolicy is
    StaQ's small network, since SB3's own needs images of 36×36 at least.
    """
    if algo.endswith("dqn") and not isinstance(env.action_space, spaces.Discrete):
        remedy = (
            "use --actions boundary" if isinstance(env.action_space, spaces.Box) else "staq, ppo and trpo take them"
        )
        raise ValueError(f"{algo} needs discrete actions, not {env.action_space}: {remedy}.")
    settings = dict(hyperparameters)
    share = timesteps / (settings.pop("anneal_steps", None) or timesteps)
    settings = {name: _schedule(value, share) for name, value in settings.items()}
    exploration_steps = settings.pop("exploration_steps", None)
    if exploration_steps is not None:
        settings["exploration_fraction"] = min(1.0, exploration_steps / timesteps)
    network: dict[str, Any] = dict(settings.pop("policy_kwargs", None) or {})
    network["activation_fn"] = getattr(nn, network.pop("activation_fn", "ReLU"))
    if policy == "CnnPolicy":
        network = small_image(network["activation_fn"]) | network
    model = class_of(algo)("MlpPolicy", env, policy_kwargs=network, seed=seed, device=device, **settings)
    return model


def _schedule(value: Any, share: float) -> Any:
    """:param share: of the steps over which a value is annealed, those of the run"""
    if not isinstance(value, str) or not value.startswith(ANNEALED):
        return value
    start = float(value.removeprefix(ANNEALED))
    return LinearSchedule(start, start * max(0.0, 1 - share), min(1.0, 1 / share))
