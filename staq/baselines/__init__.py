"""The algorithms that StaQ is measured against, from stable-baselines3: built from presets, run like our own."""

from __future__ import annotations

from typing import Any

from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.utils import LinearSchedule

from staq.baselines.hyperparameters import check_each
from staq.baselines.networks import small_image
from staq.networks.conv_mlp import activation_named
from staq.registry import ALGORITHMS

ANNEALED = "lin_"
"""RL Zoo's way to write a value that falls linearly to zero: lin_0.1. Here over ``anneal_steps``, or over the run."""

DISCRETE = ("dqn", "m-dqn", "pqn")
"""Those that list the actions."""


def build(
    algo: str, policy: str, env: Any, hyperparameters: dict[str, Any], timesteps: int, seed: int, device: str
) -> BaseAlgorithm:
    """A model from a preset's plain values.

    ``exploration_steps`` and ``anneal_steps`` say in steps what SB3 wants as a fraction of the run; CnnPolicy is
    StaQ's small network, since SB3's own needs images of 36×36 at least.
    """
    if algo in DISCRETE and not isinstance(env.action_space, spaces.Discrete):
        remedy = (
            "use --actions boundary" if isinstance(env.action_space, spaces.Box) else "staq, ppo and trpo take them"
        )
        raise ValueError(f"{algo} needs discrete actions, not {env.action_space}: {remedy}.")
    if policy == "CnnPolicy" and len(env.observation_space.shape) != 3:
        raise ValueError(f"CnnPolicy reads boards and images, not {env.observation_space}: use MlpPolicy.")
    settings = dict(hyperparameters)
    anneal_steps = settings.pop("anneal_steps", timesteps)
    check_each({"anneal_steps": anneal_steps})
    share = timesteps / anneal_steps
    settings = {name: _schedule(name, value, share) for name, value in settings.items()}
    check_each(settings)
    exploration_steps = settings.pop("exploration_steps", None)
    if exploration_steps is not None:
        if "exploration_fraction" in settings:
            raise ValueError("exploration_fraction: the preset says it in steps; use exploration_steps.")
        settings["exploration_fraction"] = min(1.0, exploration_steps / timesteps)
    network: dict[str, Any] = dict(settings.pop("policy_kwargs", None) or {})
    network["activation_fn"] = activation_named(network.get("activation_fn", "ReLU"))
    if policy == "CnnPolicy":
        network = small_image(network["activation_fn"], norm=algo == "pqn") | network
    try:
        model: BaseAlgorithm = ALGORITHMS[algo].load()(
            "MlpPolicy", env, policy_kwargs=network, seed=seed, device=device, **settings
        )
        return model
    except AssertionError as error:  # SB3's way to say what does not fit together
        raise ValueError(f"{algo} cannot be built with these settings: {error}") from error


def _schedule(name: str, value: Any, share: float) -> Any:
    """:param share: of the steps over which a value is annealed, those of the run"""
    if not isinstance(value, str) or not value.startswith(ANNEALED):
        return value
    try:
        start = float(value.removeprefix(ANNEALED))
    except ValueError as error:
        raise ValueError(f"{name}={value!r}: it must be a number, or one that falls to zero, as lin_0.1.") from error
    return LinearSchedule(start, start * max(0.0, 1 - share), min(1.0, 1 / share))
