"""Steps of a sequential VecEnv are those of SB3's DummyVecEnv."""

from __future__ import annotations

import copy

import gymnasium
import numpy as np
import pytest
from stable_baselines3.common.vec_env import DummyVecEnv

from staq.envs.make import make_env
from staq.envs.sequential_vec_env import SequentialVecEnv


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "MinAtar/Breakout-v1", "MinAtar/Freeway-v1"])
def test_every_step_is_sb3s(env_id: str) -> None:
    ours, theirs = (kind([lambda: make_env(env_id)] * 3) for kind in (SequentialVecEnv, DummyVecEnv))
    for envs in (ours, theirs):
        envs.seed(3)
        envs.action_space.seed(0)
    np.testing.assert_array_equal(ours.reset(), theirs.reset())
    ends = 0
    for _ in range(600):
        actions = np.array([ours.action_space.sample() for _ in range(3)])
        found, expected = ours.step(actions), theirs.step(actions)
        for a, b in zip(found[:3], expected[:3], strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)
        for a, b in zip(found[3], expected[3], strict=True):
            assert a.keys() == b.keys()
            assert a["TimeLimit.truncated"] == b["TimeLimit.truncated"]
            np.testing.assert_array_equal(a.get("terminal_observation"), b.get("terminal_observation"))
        ends += found[2].sum()
    assert ends or env_id == "MinAtar/Freeway-v1"


def test_what_was_returned_stays() -> None:
    envs = SequentialVecEnv([lambda: make_env("CartPole-v1")] * 2)
    envs.reset()
    first = envs.step(np.array([0, 1]))
    before = copy.deepcopy(first)
    envs.step(np.array([1, 0]))
    for a, b in zip(first[:3], before[:3], strict=True):
        np.testing.assert_array_equal(a, b)
    assert first[3] == before[3]


def test_observations_of_several_parts() -> None:
    class Parts(gymnasium.ObservationWrapper):  # type: ignore[type-arg]
        def __init__(self) -> None:
            super().__init__(gymnasium.make("CartPole-v1"))
            self.observation_space = gymnasium.spaces.Dict({"all": self.env.observation_space})

        def observation(self, observation: np.ndarray) -> dict[str, np.ndarray]:
            return {"all": observation}

    ours, theirs = (kind([Parts] * 2) for kind in (SequentialVecEnv, DummyVecEnv))
    for envs in (ours, theirs):
        envs.seed(0)
        envs.reset()
    for action in [0, 1] * 20:
        (obs, *found), (wanted, *expected) = (envs.step(np.full(2, action)) for envs in (ours, theirs))
        np.testing.assert_array_equal(obs["all"], wanted["all"])
        np.testing.assert_array_equal(found[:2], expected[:2])


def test_a_resting_environment_waits_for_the_next_reset() -> None:
    envs = SequentialVecEnv([lambda: make_env("CartPole-v1")] * 2)
    envs.reset()
    before = envs.envs[1].unwrapped.state
    envs.resting[1] = True
    _, rewards, dones, _ = envs.step(np.array([0, 1]))
    assert envs.envs[1].unwrapped.state is before
    np.testing.assert_array_equal([rewards, dones], [[1, 0], [0, 0]])
    envs.reset()
    assert envs.step(np.array([0, 1]))[1].tolist() == [1, 1]


def test_a_copy_steps_by_itself() -> None:
    envs = SequentialVecEnv([lambda: make_env("CartPole-v1")])
    envs.seed(0)
    envs.reset()
    envs.step(np.array([0]))
    other = copy.deepcopy(envs)
    np.testing.assert_array_equal(envs.step(np.array([1]))[0], other.step(np.array([1]))[0])
    np.testing.assert_array_equal(envs.step(np.array([1]))[0], other.step(np.array([1]))[0])
