"""Small agents for the tests: the real algorithm at a size that trains in a second."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env

from staq import StaQ
from staq.algorithm import PolicyMirrorDescent

SMALL: dict[str, Any] = {
    "policy_update_interval": 200,
    "buffer_size": 500,
    "batch_size": 32,
    "target_update_interval": 50,
    "memory_size": 3,
    "ent_decay_steps": 1000,
    "seed": 7,
    "device": "cpu",
}


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def small_model(env_id: str = "CartPole-v1", n_envs: int = 4, **arguments: Any) -> StaQ:
    """StaQ with a narrow network; wraps its buffer after three iterations and its stack after four."""
    images = env_id.startswith("MinAtar")
    policy_kwargs = {"net_arch": [16], "conv_arch": [(16, 3, 1)]} if images else {"net_arch": [16, 16]}
    settings = SMALL | {"policy_kwargs": policy_kwargs} | arguments
    return StaQ("CnnPolicy" if images else "MlpPolicy", make_vec_env(env_id, n_envs, seed=7), **settings)


def weights_of(model: PolicyMirrorDescent) -> dict[str, torch.Tensor]:
    """Every number of a model: networks, stack, replay."""
    stack = model.policy.policy_update.as_stack()
    tensors = {f"q_net.{k}": v.detach() for k, v in model.policy.q_net.state_dict().items()}
    tensors |= {f"stack.{k}": v for k, v in stack["networks"].items()}
    tensors |= {k: getattr(model.replay, k) for k in (*model.replay.TRANSITION, "accumulated")}
    tensors["relative_weights"] = torch.tensor(stack["relative_weights"])
    return tensors


def assert_identical(a: PolicyMirrorDescent, b: PolicyMirrorDescent) -> None:
    """Element by element, not up to rounding."""
    first, second = weights_of(a), weights_of(b)
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name]), name
    np.testing.assert_array_equal(a._last_obs, b._last_obs)


class Endless(gymnasium.Env[np.ndarray, int]):
    """Never ends by itself; observation, reward and space are set by the test."""

    def __init__(
        self,
        reward: float = 1.0,
        action_space: spaces.Space[Any] | None = None,
        observation_space: spaces.Space[Any] | None = None,
        bad_step: int | None = None,
        bad_obs: bool = False,
    ) -> None:
        self.observation_space = observation_space or spaces.Box(-1, 1, (3,))
        self.action_space = action_space or spaces.Discrete(2)
        self.reward, self.bad_step, self.bad_obs, self.steps = reward, bad_step, bad_obs, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._obs(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        bad = self.steps == self.bad_step
        obs = self._obs() * (np.nan if bad and self.bad_obs else 1)
        return obs, (float("nan") if bad and not self.bad_obs else self.reward), False, False, {}

    def _obs(self) -> Any:
        return self.np_random.uniform(-1, 1, 3).astype(np.float32)
