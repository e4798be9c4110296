"""Small agents for the tests: the real algorithm at a size that trains in a second."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from staq import StaQ
from staq.loop import PolicyMirrorDescent
from staq.networks.architecture import OUTPUT_BIAS, OUTPUT_WEIGHT, Architecture
from staq.networks.ensemble import QEnsemble
from staq.policy_evaluation.replay_regression import ReplayRegression

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


@pytest.fixture(autouse=True, scope="session")
def ctrl_c_is_heard() -> None:
    """Also where the tests run in the background of a shell, which has its jobs ignore it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def small_model(env_id: str = "CartPole-v1", n_envs: int = 4, **arguments: Any) -> StaQ:
    """StaQ with a narrow network; wraps its buffer after three iterations and its stack after four."""
    images = env_id.startswith("MinAtar")
    policy_kwargs = {"net_arch": [16], "conv_arch": [(16, 3, 1)]} if images else {"net_arch": [16, 16]}
    settings = SMALL | {"policy_kwargs": policy_kwargs} | arguments
    return StaQ("CnnPolicy" if images else "MlpPolicy", make_vec_env(env_id, n_envs, seed=7), **settings)


def lambda_model(env_id: str = "CartPole-v1", n_envs: int = 4, algorithm: str = "StaQ", **arguments: Any) -> Any:
    """An algorithm on λ-returns with a narrow network, rollouts of 50 steps and two minibatches."""
    import staq

    images = env_id.startswith("MinAtar")
    settings: dict[str, Any] = {
        "evaluation": "lambda",
        "policy_update_interval": 200,
        "batch_size": 100,
        "n_epochs": 2,
        "ent_decay_steps": 1000,
        "policy_kwargs": {"net_arch": [16], "conv_arch": [(16, 3, 1)]} if images else {"net_arch": [16, 16]},
        "seed": 7,
        "device": "cpu",
    }
    env = make_vec_env(env_id, n_envs, seed=7)
    settings |= arguments
    if settings["evaluation"] != "lambda":
        del settings["n_epochs"]
    return getattr(staq, algorithm)("CnnPolicy" if images else "MlpPolicy", env, **settings)


class StopAt(BaseCallback):
    """Stops learning at a step, be it in the middle of an iteration."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self.step = step

    def _on_step(self) -> bool:
        return self.num_timesteps < self.step


def weights_of(model: PolicyMirrorDescent) -> dict[str, torch.Tensor]:
    """Every number of a model: networks, stack, replay where it has one."""
    stack = model.policy.improvement.as_stack()
    tensors = {f"q_net.{k}": v.detach() for k, v in model.policy.q_net.state_dict().items()}
    tensors |= {f"stack.{k}": v for k, v in stack["networks"].items()}
    if model.replay_buffer is not None:
        tensors |= {k: getattr(model.replay, k) for k in model.replay.transition}
        tensors["accumulated"] = model.replay.accumulated.values
    tensors["relative_weights"] = torch.tensor(stack["relative_weights"])
    return tensors


def assert_identical(a: PolicyMirrorDescent, b: PolicyMirrorDescent) -> None:
    """Element by element, not up to rounding."""
    first, second = weights_of(a), weights_of(b)
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name]), name
    np.testing.assert_array_equal(a.policy.stored(a._last_obs), b.policy.stored(b._last_obs))


def targets_of(model: PolicyMirrorDescent, batches: torch.Tensor) -> torch.Tensor:
    """The targets of drawn transitions, as a model's replay regression computes them."""
    evaluation = model.policy_evaluation
    assert isinstance(evaluation, ReplayRegression)
    settings = evaluation.Settings.of(model)
    return evaluation.targets(model.replay, batches, model.shared, settings, model.step_size)


def assert_logits_current(model: PolicyMirrorDescent, rtol: float = 1e-5, atol: float = 1e-4) -> None:
    """The invariant of ``AccumulatedLogits``: every stored row has c of the current policy, or is pending."""
    replay, size = model.replay, model.replay.size()
    stored = ~replay.accumulated.pending[:size]
    expected = model.policy.improvement.accumulated(replay.next_observations[:size])
    torch.testing.assert_close(replay.accumulated.values[:size][stored], expected[stored], rtol=rtol, atol=atol)


class Endless(gymnasium.Env[Any, Any]):
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


VECTOR = spaces.Box(-1, 1, (5,))
BOARD = spaces.Box(0, 1, (10, 10, 4), dtype=bool)  # type: ignore[arg-type]


class TinyExtractor(BaseFeaturesExtractor):
    def __init__(self, observation_space: spaces.Space[Any]) -> None:
        super().__init__(observation_space, features_dim=6)
        assert observation_space.shape is not None
        self.net = nn.Sequential(nn.Linear(observation_space.shape[0], 6), nn.LayerNorm(6), nn.Tanh())

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return self.net(obs)


def random_weights(architecture: Architecture, n: int) -> dict[str, torch.Tensor]:
    """n networks whose output layers are not zero."""
    ensemble = QEnsemble(architecture, n)
    with torch.no_grad():
        ensemble.weights[OUTPUT_WEIGHT].normal_()
        ensemble.weights[OUTPUT_BIAS].normal_()
    return {name: w.detach() for name, w in ensemble.weights.items()}


# Operators whose result, or its shape, has to be known to the host before it can go on.
READS = {"_local_scalar_dense", "nonzero", "_unique2", "unique_dim", "masked_select", "equal", "is_nonzero"}


class HostReads(TorchDispatchMode):
    """Notes every operator that would make the host wait for a GPU; seen from below, so on a CPU too."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        masked = name in ("index", "index_put_", "index_put") and any(
            i is not None and i.dtype == torch.bool for i in args[1]
        )
        if name in READS or masked:
            self.found.append(name)
        return func(*args, **(kwargs or {}))


@contextmanager
def host_reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Every value that is read back, by an operator or straight from memory."""
    with HostReads() as mode, monkeypatch.context() as patch:
        for name in ("tolist", "numpy", "cpu"):
            method = getattr(torch.Tensor, name)
            patch.setattr(
                torch.Tensor,
                name,
                lambda *a, _method=method, _name=name, **k: mode.found.append(_name) or _method(*a, **k),
            )
        yield mode.found
