"""Boundary actions: the table by hand, and discrete algorithms that use it."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3 import DQN

from staq import BoundaryActions, StaQ
from staq.actions.boundary import boundary_actions
from tests.conftest import SMALL, Endless


def test_the_table_by_hand() -> None:
    """Zero lies between the bounds of the first coordinate, on one of the second's, and below the third's."""
    low, high = np.array([-1, 0, 2], np.float32), np.array([3, 1, 4], np.float32)
    expected = [[0, 0, 3], [-1, 0, 3], [3, 0, 3], [0, 0, 3], [0, 1, 3], [0, 0, 2], [0, 0, 4]]
    table = boundary_actions(spaces.Box(low, high))
    np.testing.assert_array_equal(table, expected)
    assert table.dtype == np.float32


def test_a_wrapped_environment_is_a_proper_discrete_one() -> None:
    env = BoundaryActions(gymnasium.make("Pendulum-v1"))
    assert env.action_space == spaces.Discrete(3)
    assert env.get_action_meanings() == ["rest", "low 0", "high 0"]
    np.testing.assert_array_equal([env.action(i) for i in range(3)], [[0], [-2], [2]])
    again = gymnasium.make(env.spec)
    assert isinstance(again.action_space, spaces.Discrete)


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Box(-np.inf, 1, (2,)), r"unbounded \(low = \[-inf, -inf\]\)"),
        (spaces.Discrete(3), "Discrete.* is none"),
        (spaces.Box(0, 5, (2,), dtype=np.int32), "whole numbers"),
    ],
    ids=str,
)
def test_what_has_no_boundary_is_named(space: spaces.Space, message: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(ValueError, match=message):
        BoundaryActions(Endless(action_space=space))


def test_any_discrete_algorithm_can_use_it() -> None:
    env = BoundaryActions(gymnasium.make("Pendulum-v1"))
    DQN("MlpPolicy", env, learning_starts=10, buffer_size=100, device="cpu").learn(50)
    model = StaQ("MlpPolicy", env, **SMALL)
    model.learn(200)
    assert model.policy.codec.factors.sizes == (3,)


def test_an_environment_may_write_into_its_action() -> None:
    class Writing(Endless):
        def step(self, action: Any) -> Any:
            self.last = action.copy()
            action *= 0.5
            return super().step(0)

    env = BoundaryActions(Writing(action_space=spaces.Box(-1, 1, (1,))))
    for _ in range(2):
        env.step(2)
        assert env.unwrapped.last == [1.0]  # type: ignore[attr-defined]
