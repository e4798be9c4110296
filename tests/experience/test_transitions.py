"""What is not finite stops a run before it is stored."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from stable_baselines3.common.vec_env import DummyVecEnv

from staq import StaQ
from tests.conftest import SMALL, Endless


def test_a_terminal_observation_is_checked_too() -> None:
    class BadEnd(Endless):
        def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            obs, reward, _, _, info = super().step(action)
            end = self.steps == 10
            return obs * (np.inf if end else 1), reward, end, False, info

    with pytest.raises(FloatingPointError, match="Environment 0 returned an observation that is not finite at step 9"):
        StaQ("MlpPolicy", BadEnd(), **SMALL).learn(200)


def test_the_first_observation_of_an_episode_is_checked_too() -> None:
    class BadStart(Endless):
        def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
            obs, info = super().reset(**arguments)
            return obs * (np.nan if self.steps >= self.bad_from else 1), info

        def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            obs, reward, _, _, info = super().step(action)
            return obs, reward, self.steps == 10, False, info

    class AtOnce(BadStart):
        bad_from = 0

    class Later(BadStart):
        bad_from = 10

    for kind, step in ((AtOnce, 0), (Later, 9)):
        with pytest.raises(FloatingPointError, match=f"Environment 0 returned an observation .* at step {step}"):
            StaQ("MlpPolicy", kind(), **SMALL).learn(200)


def test_what_is_too_large_for_a_network_is_named() -> None:
    with pytest.raises(FloatingPointError, match=r"returned a reward that is beyond 1e\+15 at step 0 \(1.0.*e\+30\)"):
        StaQ("MlpPolicy", Endless(reward=1e30), **SMALL).learn(200)


@pytest.mark.parametrize("what", ["reward", "observation"])
def test_nan_stops_before_it_is_stored(what: str) -> None:
    envs = [lambda i=i: Endless(bad_step=30 if i == 1 else None, bad_obs=what == "observation") for i in range(4)]
    model = StaQ("MlpPolicy", DummyVecEnv(envs), **SMALL)
    with pytest.raises(FloatingPointError, match=f"Environment 1 returned an? {what}.*step 116"):
        model.learn(400)
    assert torch.isfinite(model.replay.rewards).all()
    assert model.replay.size() == 116
