"""Environments stepped one after the other, with nothing beside their own work."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import gymnasium
import numpy as np
from gymnasium.wrappers import OrderEnforcing
from stable_baselines3.common.vec_env import DummyVecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs, VecEnvStepReturn


class SequentialVecEnv(DummyVecEnv):
    """Steps environments one after the other, as SB3's ``DummyVecEnv`` does, but without its deep copies.

    What it returns is made anew in every step, so there is nothing to copy.
    """

    def __init__(self, env_fns: list[Callable[[], gymnasium.Env[Any, Any]]]) -> None:
        super().__init__(env_fns)
        self.resting = np.zeros(self.num_envs, dtype=bool)
        """Environments that are not stepped until the next reset."""

    def reset(self) -> VecEnvObs:
        self.resting[:] = False
        return super().reset()

    def step_wait(self) -> VecEnvStepReturn:
        parts: dict[Any, np.ndarray] = {name: values.copy() for name, values in self.buf_obs.items()}
        obs = parts.get(None)  # unless there are several
        rewards, dones = self.buf_rews.copy(), self.buf_dones.copy()
        infos: list[dict[str, Any]] = []
        for i, (step, action) in enumerate(zip(self._steps, self.actions, strict=True)):
            if self.resting[i]:
                infos.append({})
                continue
            seen, rewards[i], terminated, truncated, info = step(action)
            dones[i] = ended = terminated or truncated
            info["TimeLimit.truncated"] = truncated and not terminated
            if ended:
                info["terminal_observation"] = seen
                seen, self.reset_infos[i] = self.envs[i].reset()
            if obs is not None:
                obs[i] = seen
            else:
                for name, values in parts.items():
                    values[i] = seen[name]
            infos.append(info)
        return parts if obs is None else obs, rewards, dones, infos

    @cached_property
    def _steps(self) -> list[Callable[[Any], Any]]:
        return [_innermost(env).step for env in self.envs]


def _innermost(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    """Below the wrappers that only guard the order of calls, which is certain here."""
    while type(env) is OrderEnforcing:
        env = env.env
    return env
