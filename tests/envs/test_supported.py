"""Spaces without support are named, at the beginning and by set_env."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env

from staq import StaQ
from tests.conftest import Endless, small_model


@pytest.mark.parametrize(
    ("spaces_", "message"),
    [
        ({"action_space": spaces.Text(3)}, "no support for actions of Text"),
        ({"action_space": spaces.Box(-1, np.inf, (2,))}, r"unbounded \(high = \[inf, inf\]\).*TransformAction"),
        ({"action_space": spaces.Box(-1, 1, (2,), dtype=np.int64)}, "whole numbers.*MultiDiscrete"),
        ({"action_space": spaces.MultiDiscrete([1, 1])}, "single action"),
        ({"action_space": spaces.Discrete(1)}, "single action"),
        ({"observation_space": spaces.Text(5)}, "no support for observations of Text"),
        ({"observation_space": spaces.Tuple([spaces.Discrete(2)])}, "Tuple observations.*FlattenObservation"),
    ],
)
def test_unsupported_spaces_are_named(spaces_: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        StaQ("MlpPolicy", Endless(**spaces_))


def test_set_env_checks_the_environment() -> None:
    model = small_model()
    model.set_env(make_vec_env("CartPole-v1", 4))
    model.learn(200)
    with pytest.raises(ValueError, match="is unbounded"):
        model.set_env(Endless(action_space=gymnasium.spaces.Box(-1, np.inf, (2,))))
