"""Replays, wrappers and environments of a training come back, or begin anew and say so."""

from __future__ import annotations

from pathlib import Path

import gymnasium
import numpy as np
import pytest
from stable_baselines3 import DQN
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecFrameStack, VecNormalize

from staq import Checkpoints, StaQ, resume
from staq.storage.training_state import SB3_TRANSITION
from tests.baselines.conftest import built
from tests.conftest import SMALL, assert_identical, small_model
from tests.storage.conftest import finish


def test_statistics_of_vec_normalize_survive_environments_that_do_not(tmp_path: Path) -> None:
    pytest.importorskip("Box2D")

    def model() -> StaQ:
        return StaQ("MlpPolicy", VecNormalize(make_vec_env("LunarLander-v3", 4, seed=1)), **SMALL)

    first = model()
    first.learn(400, callback=Checkpoints(tmp_path))
    with pytest.warns(UserWarning, match="begin new episodes"):
        resumed = resume(model(), tmp_path)
    old, new = first.get_vec_normalize_env(), resumed.get_vec_normalize_env()
    assert old is not None
    assert new is not None
    assert new.obs_rms.count == pytest.approx(old.obs_rms.count + 4)  # one more reset
    np.testing.assert_allclose(new.obs_rms.mean, old.obs_rms.mean, atol=0.05)


def test_wrappers_of_the_vectorised_environment_are_restored(tmp_path: Path) -> None:
    def model() -> StaQ:
        env = VecFrameStack(VecNormalize(make_vec_env("CartPole-v1", 4, seed=1)), 2)
        return StaQ("MlpPolicy", env, **SMALL, policy_kwargs={"net_arch": [16]})

    whole = model().learn(1000)
    model().learn(600, callback=Checkpoints(tmp_path))
    resumed = finish(model(), tmp_path, 1000)
    assert_identical(whole, resumed)


def test_environments_that_cannot_be_restored_begin_new_episodes(tmp_path: Path) -> None:
    pytest.importorskip("Box2D")
    small_model("LunarLander-v3").learn(400, callback=Checkpoints(tmp_path))
    with pytest.warns(UserWarning, match="begin new episodes"):
        model = resume(small_model("LunarLander-v3"), tmp_path)
    model.learn(200, reset_num_timesteps=False)
    assert model.iteration == 3


def test_a_replay_that_wrapped_comes_back_whole(tmp_path: Path) -> None:
    """Every transition, and which were cut by a time limit, from segments of which the oldest is partly gone."""
    models = []
    for folder in (tmp_path / "written", tmp_path / "unused"):
        env = make_vec_env(lambda: gymnasium.make("CartPole-v1", max_episode_steps=7), n_envs=2, seed=0)
        model = DQN("MlpPolicy", env, buffer_size=60, learning_starts=10, train_freq=1, seed=0, device="cpu")
        models.append(model.learn(130 if not models else 2, callback=Checkpoints(folder, 24)))
    written, resumed = (model.replay_buffer for model in models)
    assert written is not None
    assert resumed is not None
    assert written.full
    assert written.timeouts.any()
    resume(models[1], tmp_path / "written")
    assert (resumed.pos, resumed.full) == (written.pos, written.full)
    for part in SB3_TRANSITION:
        np.testing.assert_array_equal(getattr(resumed, part), getattr(written, part), err_msg=part)


def test_where_an_environment_cannot_be_restored_new_episodes_begin(tmp_path: Path) -> None:
    """New ones: not those that the run began with."""
    pytest.importorskip("Box2D")
    env_id = "LunarLander-v3"
    changes = {"buffer_size": 100, "learning_starts": 10}
    built("dqn", env_id, **changes).learn(40, callback=Checkpoints(tmp_path, 20))
    model, first = built("dqn", env_id, **changes), built("dqn", env_id, **changes)
    with pytest.warns(UserWarning, match="begin new episodes"):
        resume(model, tmp_path)
    assert not any(np.allclose(model._last_obs, first.env.reset()) for _ in range(3))
