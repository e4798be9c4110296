"""What is no MDP is refused."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from staq.tabular.mdp import MDP, from_toy_text, garnet


@pytest.mark.parametrize(
    ("reward", "transition", "discount", "message"),
    [
        (np.zeros((2, 2)), np.zeros((3, 2)), 0.9, r"it must be \(4, 2\)"),
        (np.zeros((1, 2)), np.ones((2, 1)), 1.0, "discount=1.0"),
        (np.zeros((1, 2)), np.full((2, 1), 1.5), 0.9, "rows of probabilities"),
        (np.zeros((2, 1)), np.array([[-0.5, 1.0], [0.5, 0.5]]), 0.9, "rows of probabilities"),
    ],
)
def test_bad_mdps_are_refused(reward: np.ndarray, transition: np.ndarray, discount: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MDP(reward, transition, discount)


def test_only_tables_become_mdps() -> None:
    with pytest.raises(ValueError, match="no table of transitions"):
        from_toy_text(gymnasium.make("CartPole-v1"), 0.9)
    with pytest.raises(ValueError, match="branching=9"):
        garnet(4, 2, 9, 0.9, np.random.default_rng(0))
