"""Accumulated logits against their recomputation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from stable_baselines3.common.vec_env import DummyVecEnv

from staq import StaQ
from tests.conftest import SMALL, Endless, small_model


@pytest.mark.parametrize("env_id", ["CartPole-v1", "MinAtar/Breakout-v1"])
@pytest.mark.parametrize("memory_size", [1, 3, None])
@pytest.mark.parametrize("weighting", ["current", "exact"])
def test_accumulated_logits_equal_a_full_recomputation(env_id: str, memory_size: int | None, weighting: str) -> None:
    """After the buffer and the stack have both wrapped, under an annealed entropy weight."""
    model = small_model(env_id, memory_size=memory_size, weighting=weighting).learn(1600)
    replay, update = model.replay, model.policy.improvement
    assert replay.full
    assert model.iteration == 8
    recomputed = update.accumulated(replay.next_observations)
    scale = recomputed.abs().max().item()
    assert scale > 0.005
    torch.testing.assert_close(replay.accumulated.values, recomputed, rtol=1e-5, atol=1e-5 * scale)


def test_recomputation_also_holds_while_episodes_end_at_every_step() -> None:
    """Every next state is then a terminal observation that the policy never acted on."""

    class OneStep(Endless):
        def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            obs, reward, _, _, info = super().step(action)
            return obs, reward, bool(action), not action, info

    model = StaQ("MlpPolicy", DummyVecEnv([OneStep] * 4), **SMALL).learn(1000)
    recomputed = model.policy.improvement.accumulated(model.replay.next_observations)
    torch.testing.assert_close(model.replay.accumulated.values, recomputed, rtol=1e-5, atol=1e-4)
    assert model.replay.terminated.tolist() == model.replay.actions.bool().tolist()
