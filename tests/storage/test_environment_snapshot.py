"""Snapshots of environments: exact where that can be, and never trusted elsewhere."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import TimeLimit
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

from staq import Checkpoints, StaQ, resume
from staq.storage.environment_snapshot import CannotRestore, restore, restores_exactly, snapshot, why_not_exactly
from tests.conftest import SMALL, Endless, assert_identical


@pytest.mark.parametrize(
    ("env_id", "exactly"),
    [
        *((name, True) for name in ("CartPole-v1", "Acrobot-v1", "MountainCar-v0", "Pendulum-v1")),
        *((f"MinAtar/{g}-v1", True) for g in ("Asterix", "Breakout", "Freeway", "Seaquest", "SpaceInvaders")),
        *((f"{body}-v5", True) for body in ("HalfCheetah", "Walker2d", "Ant", "Humanoid")),
        ("LunarLander-v3", False),
    ],
)
def test_which_environments_restore_exactly(env_id: str, exactly: bool) -> None:
    assert restores_exactly(make_vec_env(env_id, 1)) is exactly


class SecretGenerator(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Its state is no plain data, and its constructor is not on record."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.dice = random.Random(0)

    def step(self, action: Any) -> Any:
        obs, reward, *rest = self.env.step(action)
        return obs, float(reward) + self.dice.random(), *rest


class GoalsOfTheEpisode(gymnasium.Env[np.ndarray, int]):
    """What it draws at a reset stays the same until the next, and is a set: no plain data."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    observation_space = gymnasium.spaces.Box(0, 100, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.goals = {int(self.np_random.integers(1, 100))}
        return np.array([0.0], dtype=np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        return np.array([sum(self.goals)], dtype=np.float32), 1.0, False, False, {}


def test_what_is_not_plain_data_is_found_out() -> None:
    assert not restores_exactly(make_vec_env("CartPole-v1", 1, wrapper_class=SecretGenerator))
    gymnasium.register("Goals-v0", entry_point=GoalsOfTheEpisode)
    try:
        assert not restores_exactly(make_vec_env("Goals-v0", 1))
    finally:
        del gymnasium.registry["Goals-v0"]


def test_an_environment_made_by_hand_is_tried_on_copies() -> None:
    assert restores_exactly(DummyVecEnv([lambda: TimeLimit(Endless(), 7)]))
    reason = why_not_exactly(DummyVecEnv([GoalsOfTheEpisode]))
    assert reason == "a trial showed that not all of their state can be restored"
    assert "TypeError: cannot pickle" in (why_not_exactly(DummyVecEnv([WithAFile])) or "")


class WithAFile(Endless):
    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


def test_a_run_on_an_environment_made_by_hand_resumes_exactly(tmp_path: Path) -> None:
    def fresh(total: int, **saving: Any) -> StaQ:
        envs = DummyVecEnv([lambda: Monitor(TimeLimit(Endless(), 7))] * 4)
        envs.seed(3)
        return StaQ("MlpPolicy", envs, **SMALL).learn(total, **saving)

    fresh(400, callback=Checkpoints(tmp_path))
    resumed = resume(fresh(0), tmp_path).learn(400, reset_num_timesteps=False)
    assert_identical(resumed, fresh(800))


def test_the_reason_for_new_episodes_is_the_true_one(tmp_path: Path) -> None:
    envs = make_vec_env("CartPole-v1", 2, vec_env_cls=SubprocVecEnv)
    model = StaQ("MlpPolicy", envs, **SMALL).learn(200, callback=Checkpoints(tmp_path))
    with pytest.warns(UserWarning, match="begin new episodes, since they live in other processes; all else"):
        resume(model, tmp_path)
    envs.close()


def test_a_shared_generator_stays_shared() -> None:
    class Pair:
        def __init__(self, seed: int) -> None:
            self.one = self.two = np.random.RandomState(seed)

    first, second = Pair(1), Pair(2)
    restore(second, snapshot(first))
    assert second.one is second.two
    assert second.one.rand() == first.one.rand()


def test_the_state_of_mujoco_needs_mujoco() -> None:
    cheetah, pendulum = gymnasium.make("HalfCheetah-v5"), gymnasium.make("Pendulum-v1")
    cheetah.reset()
    data = {"data": snapshot(cheetah.unwrapped)["__object__"]["data"]}
    with pytest.raises(CannotRestore, match="was MuJoCo's data"):
        restore(pendulum.unwrapped, {"__object__": data})


def test_an_object_that_is_not_there_cannot_be_restored() -> None:
    class Holder:
        def __init__(self, held: Any) -> None:
            self.held = held

    with pytest.raises(CannotRestore, match=r"Holder.held was an object"):
        restore(Holder(None), snapshot(Holder(Holder(1))))
