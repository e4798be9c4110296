"""Which environments an algorithm takes, and what it says of the others."""

from __future__ import annotations

import math

import gymnasium
from gymnasium import spaces
from stable_baselines3.common.type_aliases import GymEnv

from staq.actions.factored import ActionCodec, check_box


def supported_env(env: GymEnv | str | None) -> GymEnv | None:
    """Return the environment, made if it was named; one that cannot work is an error before SB3 fails on it."""
    if env is None:
        return None
    if isinstance(env, str):
        env = gymnasium.make(env)
    if isinstance(env, type):
        raise ValueError(f"env={env!r}: it must be an environment, not its class: make one, {env.__name__}().")
    if isinstance(env, gymnasium.vector.VectorEnv):
        raise ValueError(
            f"env={env!r}: vectorised environments are those of stable-baselines3, as make_vec_env(…, n_envs="
            f"{env.num_envs}) makes them."
        )
    if not hasattr(env, "action_space") or not hasattr(env, "observation_space"):
        raise ValueError(f"env={env!r}: it must be an environment, a vectorised one, or the name of one.")
    actions, observations = env.action_space, env.observation_space
    if not isinstance(actions, (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary, spaces.Box)):
        raise ValueError(
            f"There is no support for actions of {actions}: offer a Discrete, MultiDiscrete, MultiBinary or Box space."
        )
    if isinstance(actions, spaces.Box):
        check_box(actions)
    if isinstance(actions, spaces.MultiBinary) and len(actions.shape) > 1:
        raise ValueError(
            f"SB3 has no support for {actions} of several dimensions: offer MultiBinary({math.prod(actions.shape)})."
        )
    if ActionCodec(actions).factors.log_count == 0:
        raise ValueError(f"{actions} has a single action: there is nothing to learn, and ln|A| = 0 scales no entropy.")
    if isinstance(observations, spaces.Tuple):
        raise ValueError(
            f"There is no support for Tuple observations ({observations}): name their parts with a Dict, or flatten "
            "them with gymnasium.wrappers.FlattenObservation."
        )
    plain = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
    if not isinstance(observations, (*plain, spaces.Dict)):
        raise ValueError(
            f"There is no support for observations of {observations}: encode them as numbers in a Box, with "
            "gymnasium.wrappers.TransformObservation."
        )
    if isinstance(observations, spaces.Dict):
        for key, inner in observations.spaces.items():
            if not isinstance(inner, plain):
                raise ValueError(
                    f"There is no support for {inner} within Dict observations (key {key!r}), as in SB3: flatten it, "
                    "so that there is one level."
                )
    return env
