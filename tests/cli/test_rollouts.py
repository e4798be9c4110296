"""Rollouts depend on the policy and the seed, and disturb neither the policy nor the run."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from stable_baselines3 import DQN
from stable_baselines3.common.evaluation import evaluate_policy

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


@pytest.mark.parametrize("algo", ["staq", "dqn"])
def test_who_has_played_all_episodes_is_not_played_for(algo: str) -> None:
    """The others' greedy returns are those of SB3, which goes on in every environment until the last episode ends."""
    model = small_model() if algo == "staq" else DQN("MlpPolicy", make_envs("CartPole-v1", 1), seed=0)
    policy, seen = policy_of(model.learn(400)), []

    class Seeing:
        seeded = staticmethod(policy.seeded)

        def predict(self, obs: np.ndarray, *given: object, **named: object) -> object:
            seen.append(len(obs))
            return policy.predict(obs, *given, **named)

    played = play(Seeing(), make_envs("CartPole-v1", 4), 7, greedy=True, seed=3)
    assert sum(seen) == played.lengths.sum()
    env = make_envs("CartPole-v1", 4)
    env.seed(3)
    returns, _ = evaluate_policy(policy, env, 7, return_episode_rewards=True)
    np.testing.assert_array_equal(played.returns, returns)


def test_evaluating_does_not_change_the_run(tmp_path: Path) -> None:
    evaluated = small_model()
    evaluated.learn(800, callback=Rollouts(make_envs("CartPole-v1", 4), tmp_path, 200, seed=0))
    assert_identical(evaluated, small_model().learn(800))
    assert [row.timesteps for row in read_rows(tmp_path)] == [200, 200, 400, 400, 600, 600, 800, 800]
    assert (tmp_path / "best_model").is_dir()


def test_rows_round_trip(tmp_path: Path) -> None:
    rows = [
        Returns(10, "greedy", 2, 1.5, 0.5, 1.0, 7.0, 3.2, 2.5),
        Returns(10, "stochastic", 2, -1.0, 0.0, -1.0, 9.0, 3.2, 2.5),
    ]
    write_rows(tmp_path, rows)
    assert read_rows(tmp_path) == rows


def test_rows_of_before_core_seconds_were_counted_have_none(tmp_path: Path) -> None:
    write_rows(tmp_path, [Returns(10, "greedy", 2, 1.5, 0.5, 1.0, 7.0, 3.2)])
    path = tmp_path / "evaluations.csv"
    path.write_text("\n".join(line.rpartition(",")[0] for line in path.read_text().splitlines()) + "\n")
    (row,) = read_rows(tmp_path)
    assert row.seconds == 3.2
    assert math.isnan(row.core_seconds)


def test_core_seconds_are_of_training_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock on which a step of training takes a second and an evaluation a thousand."""
    clock = [0.0]

    class Counted(Rollouts):
        def _on_step(self) -> bool:
            clock[0] += 1.0
            return super()._on_step()

        def record(self) -> None:
            super().record()
            clock[0] += 1000.0

    monkeypatch.setattr("staq.cli.rollouts.time.process_time", lambda: clock[0])
    model = small_model()
    model.learn(800, callback=Counted(make_envs("CartPole-v1", 2), tmp_path, 200, seed=0))
    greedy = [row for row in read_rows(tmp_path) if row.mode == "greedy"]
    assert [row.core_seconds for row in greedy] == [row.timesteps / model.n_envs for row in greedy]
