"""Rollouts depend on the policy and the seed, and disturb neither the policy nor the run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from stable_baselines3 import DQN

from staq.cli.rollouts import Returns, Rollouts, play, policy_of, read_rows, write_rows
from staq.envs.make import make_envs
from tests.conftest import assert_identical, small_model


def test_returns_repeat_and_leave_the_generator_as_it_was() -> None:
    model, env = small_model().learn(400), make_envs("CartPole-v1", 3)
    before = model.policy.sampling.get_state()
    first = play(model.policy, env, 6, greedy=False, seed=3)
    assert torch.equal(model.policy.sampling.get_state(), before)
    np.testing.assert_array_equal(play(model.policy, env, 6, greedy=False, seed=3), first)
    assert not np.array_equal(play(model.policy, env, 6, greedy=False, seed=4).returns, first.returns)


@pytest.mark.parametrize("algo", ["staq", "dqn"])
def test_both_modes_side_by_side_are_each_mode_alone(algo: str) -> None:
    """By a mask: the greedy half plays as it does alone, the other half samples."""
    uniform = {"exploration_final_eps": 1.0, "seed": 0}
    model = small_model() if algo == "staq" else DQN("MlpPolicy", make_envs("CartPole-v1", 1), **uniform)
    policy, greedy = policy_of(model.learn(400)), np.arange(8) < 4
    both = play(policy, make_envs("CartPole-v1", 8), 8, greedy, seed=3)
    alone = play(policy, make_envs("CartPole-v1", 4), 4, greedy=True, seed=3)
    chosen = greedy[both.played_by]
    assert sorted(both.played_by) == list(range(8))
    np.testing.assert_array_equal(both.returns[chosen], alone.returns)
    all_greedy = play(policy, make_envs("CartPole-v1", 8), 8, greedy=True, seed=3)
    assert sorted(all_greedy.returns) != sorted(both.returns)


def test_evaluating_does_not_change_the_run(tmp_path: Path) -> None:
    evaluated = small_model()
    evaluated.learn(800, callback=Rollouts(make_envs("CartPole-v1", 4), tmp_path, 200, seed=0))
    assert_identical(evaluated, small_model().learn(800))
    assert [row.timesteps for row in read_rows(tmp_path)] == [200, 200, 400, 400, 600, 600, 800, 800]
    assert (tmp_path / "best_model").is_dir()


def test_rows_round_trip(tmp_path: Path) -> None:
    rows = [
        Returns(10, "greedy", 2, 1.5, 0.5, 1.0, 7.0, 3.2),
        Returns(10, "stochastic", 2, -1.0, 0.0, -1.0, 9.0, 3.2),
    ]
    write_rows(tmp_path, rows)
    assert read_rows(tmp_path) == rows
