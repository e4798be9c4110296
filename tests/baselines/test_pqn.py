"""PQN: returns worked by hand, what ends a rollout, and that it learns."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import IdentityEnv
from stable_baselines3.common.evaluation import evaluate_policy
from torch import nn

from staq.baselines.pqn import PQN, Steps, greedy_lambda_returns
from tests.baselines.conftest import built


def test_returns_by_hand() -> None:
    """γ = 1/2, λ = 1/4: a step in the middle, an end, an episode that was cut (8), the rollout's end (4)."""
    rollout = Steps(
        obs=torch.empty(0),
        actions=torch.empty(0),
        rewards=torch.tensor([[1.0], [2.0], [3.0], [4.0]]),
        done=torch.tensor([[False], [True], [True], [False]]),
        next_values=torch.tensor([[16.0], [0.0], [8.0], [4.0]]),
    )
    found = greedy_lambda_returns(rollout, gamma=0.5, trace_decay=0.25).flatten().tolist()
    last, cut, ended = 4 + 0.5 * 4, 3 + 0.5 * 8, 2.0
    assert found == [1 + 0.5 * (0.75 * 16 + 0.25 * ended), ended, cut, last]


class Counting(gymnasium.Env[Any, Any]):
    """The observation is the time; ends after 3 steps, or is cut after 2."""

    observation_space, action_space = spaces.Box(0, 9, (1,)), spaces.Discrete(2)

    def __init__(self, cut: bool = False) -> None:
        self.cut = cut

    def reset(self, **_: Any) -> Any:
        self.time = 0.0
        return self._obs(), {}

    def _obs(self) -> np.ndarray:
        return np.array([self.time], dtype=np.float32)

    def step(self, action: int) -> Any:
        self.time += 1.0
        return self._obs(), self.time, self.time == 3, self.cut and self.time == 2, {}


@pytest.mark.parametrize(("cut", "ends", "bootstrapped"), [(False, [2], []), (True, [1, 3], [1, 3])])
def test_what_follows_a_step(cut: bool, ends: list[int], bootstrapped: list[int]) -> None:
    """max q of the next state: 0 after an end, of the last state where an episode was cut."""
    model = PQN("MlpPolicy", make_vec_env(lambda: Counting(cut), n_envs=1), n_steps=5, seed=0)
    _, callback = model._setup_learn(5)
    rollout = model.collect(callback)
    assert rollout is not None
    assert rollout.done.flatten().nonzero().flatten().tolist() == ends
    times = [2.0 if t in bootstrapped else (rollout.obs[t] + 1).item() for t in range(5)]
    _, q = model._q_values(np.array(times, dtype=np.float32)[:, None])
    wanted = [0.0 if t in ends and t not in bootstrapped else q[t].max().item() for t in range(5)]
    assert rollout.next_values.flatten().tolist() == pytest.approx(wanted)


def test_every_environment_explores_by_itself() -> None:
    model = PQN("MlpPolicy", make_vec_env("CartPole-v1", n_envs=64), seed=0)
    model.exploration_rate, obs = 0.5, np.zeros((1000, 4), dtype=np.float32)
    greedy, explored = (model.predict(obs, deterministic=each)[0] for each in (True, False))
    assert len(np.unique(greedy)) == 1
    assert (greedy != explored).mean() == pytest.approx(0.25, abs=0.05)
    assert np.shape(model.predict(obs[0])[0]) == ()


def test_its_networks_are_normalised() -> None:
    model = built("pqn", "MinAtar/Breakout-v1")
    kinds = [type(layer) for layer in model.policy.q_net.q_net]
    assert kinds == [nn.Linear, nn.LayerNorm, nn.ReLU, nn.Linear]
    board = torch.rand(2, 10, 10, 4) < 0.5
    places = model.policy.q_net.features_extractor.layers[:2](board.float().permute(0, 3, 1, 2))
    assert places.mean(1).abs().max() < 1e-5, "over the channels at each place"


def test_it_learns() -> None:
    env = make_vec_env(lambda: IdentityEnv(4), n_envs=8)
    model = PQN("MlpPolicy", env, learning_rate=1e-3, batch_size=32, gamma=0.5, seed=0).learn(15_000)
    assert model.exploration_rate == pytest.approx(0.05), "after a tenth of the training"
    evaluate_policy(model, IdentityEnv(4), n_eval_episodes=5, reward_threshold=90, warn=False)
