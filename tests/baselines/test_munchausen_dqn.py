"""M-DQN's target by hand, and that it learns."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import IdentityEnv

from staq.baselines.munchausen_dqn import MDQN, munchausen_target


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values).unsqueeze(-1)


def target(**changes: Any) -> torch.Tensor:
    arguments: dict[str, Any] = {
        "rewards": column(1.0, 1.0, 1.0),
        "terminated": column(0.0, 0.0, 1.0),
        "actions": torch.tensor([[0], [1], [0]]),
        "q": torch.tensor([[0.0, math.log(3.0)]] * 3),  # π = (¼, ¾) at temperature 1
        "next_q": torch.tensor([[2.0, 2.0]] * 3),  # uniform: the soft value is 2 + ln 2
        "discount": 0.5,
        "temperature": 1.0,
        "scaling": 0.9,
        "clip": -1.0,
    }
    return munchausen_target(**(arguments | changes)).squeeze(-1)


def test_the_target_by_hand() -> None:
    """log ¼ = −1.386 is clipped to −1, log ¾ = −0.288 is not; the terminal state has no value."""
    value = 2 + math.log(2)
    expected = [1 - 0.9 + 0.5 * value, 1 + 0.9 * math.log(0.75) + 0.5 * value, 1 - 0.9]
    torch.testing.assert_close(target(), torch.tensor(expected))


def test_the_temperature_scales_the_bonus() -> None:
    """At temperature ½: log π(0) = −ln(1 + 9), so ½ log π = −1.151, clipped."""
    found = target(temperature=0.5, clip=-2.0)
    assert found[0].item() == pytest.approx(1 - 0.9 * 0.5 * math.log(10) + 0.5 * (2 + 0.5 * math.log(2)), rel=1e-5)


@pytest.mark.parametrize("temperature", [0.01, 0.1, 1.0])
def test_without_scaling_it_is_nearly_dqns(temperature: float) -> None:
    torch.manual_seed(0)
    q, next_q = torch.randn(50, 4), torch.randn(50, 4)
    rewards, actions = torch.randn(50, 1), torch.zeros(50, 1, dtype=torch.long)
    found = munchausen_target(rewards, torch.zeros(50, 1), actions, q, next_q, 0.9, temperature, 0.0, -1.0)
    difference = found - (rewards + 0.9 * next_q.max(-1, keepdim=True).values)
    assert (difference >= -1e-6).all()
    assert (difference <= 0.9 * temperature * math.log(4) + 1e-6).all()


def test_m_dqn_learns_and_is_an_sb3_model(tmp_path: Path) -> None:
    model = MDQN("MlpPolicy", IdentityEnv(dim=3), learning_rate=3e-3, learning_starts=50, seed=0, device="cpu")
    model.learn(1500)
    assert [int(model.predict(np.array(s), deterministic=True)[0]) for s in range(3)] == [0, 1, 2]
    model.save(tmp_path / "model")
    assert MDQN.load(tmp_path / "model").temperature == 0.03
    with pytest.raises(ValueError, match="temperature=0"):
        MDQN("MlpPolicy", IdentityEnv(dim=3), temperature=0)


def test_m_dqn_asks_the_target_network_and_knows_time_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both q and next q are the target network's, which differs from the trained one; a cut episode has a future."""
    env = make_vec_env(lambda: gymnasium.make("CartPole-v1", max_episode_steps=5), n_envs=1, seed=0)
    settings: dict[str, Any] = {"learning_starts": 10, "train_freq": 1, "target_update_interval": 1000}
    model = MDQN(
        "MlpPolicy", env, buffer_size=100, batch_size=64, gamma=0.7, scaling=0.8, seed=0, device="cpu", **settings
    )
    model.learn(60)
    assert model.replay_buffer is not None
    assert model.replay_buffer.timeouts.any()
    batches, seen = [], []
    sample = model.replay_buffer.sample
    monkeypatch.setattr(model.replay_buffer, "sample", lambda *a, **k: batches.append(sample(*a, **k)) or batches[-1])
    monkeypatch.setattr(
        "staq.baselines.munchausen_dqn.munchausen_target", lambda *a: seen.append(a) or munchausen_target(*a)
    )
    model.train(1, batch_size=64)
    (batch,), (found,) = batches, seen
    rewards, terminated, actions, q, next_q, *rest = found
    assert torch.equal(rewards, batch.rewards)
    assert torch.equal(actions, batch.actions)
    assert torch.equal(terminated, batch.dones)
    assert batch.dones.sum() == 0  # within five steps no pole falls: all episodes were cut
    with torch.no_grad():
        assert torch.equal(q, model.q_net_target(batch.observations))
        assert torch.equal(next_q, model.q_net_target(batch.next_observations))
        assert not torch.allclose(q, model.q_net(batch.observations))
    assert rest == [0.7, 0.03, 0.8, -1.0]
