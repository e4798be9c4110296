"""An SB3 model as a policy that plays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3 import PPO

from staq import registry
from staq.baselines.sb3_policy import SB3Policy
from tests.baselines.conftest import built
from tests.conftest import Endless


@pytest.mark.parametrize("space", [spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(3)], ids=str)
def test_a_baselines_probabilities_have_a_column_per_choice(space: Any) -> None:
    player = SB3Policy(PPO("MlpPolicy", Endless(action_space=space), n_steps=8, batch_size=8, device="cpu"))
    probabilities = player.action_probabilities(np.zeros(3, np.float32))
    action, _ = player.predict(np.zeros(3, np.float32))
    assert player.codec is not None
    for part in np.split(probabilities, player.codec.factors.first[1:]):
        assert part.sum() == pytest.approx(1)
    assert player.codec.indices(action)[0].dtype == np.int64


@pytest.mark.parametrize("algo", registry.baselines())
def test_players_have_probabilities_and_leave_the_run_alone(algo: str) -> None:
    model = built(algo, "MinAtar/Breakout-v1", **({"buffer_size": 100} if "dqn" in algo else {}))
    player, obs = SB3Policy(model), np.zeros((5, 10, 10, 4), dtype=bool)
    probabilities = player.action_probabilities(obs)
    np.testing.assert_allclose(probabilities.sum(-1), 1.0, rtol=1e-5)
    assert player.action_probabilities(obs[0]).shape == (3,)
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # type: ignore[index]  # noqa: NPY002
    draws = []
    for _ in range(2):
        with player.seeded(3):
            draws.append(player.predict(obs, deterministic=False)[0].tolist())
    assert draws[0] == draws[1]
    assert torch.equal(before[0], torch.get_rng_state())
    np.testing.assert_array_equal(before[1], np.random.get_state()[1])  # type: ignore[index]  # noqa: NPY002
