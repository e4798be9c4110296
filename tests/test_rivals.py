"""M-DQN's target by hand, and SB3's algorithms through our command line: presets, resume, evaluation."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.envs import IdentityEnv
from torch import nn

from staq import presets
from staq.cli import main
from staq.rivals import MDQN, RIVALS, SmallImage, build
from staq.rivals.m_dqn import munchausen_target
from staq.rivals.player import Player
from staq.runs import make_envs
from staq.whole_files import read


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


def test_presets_are_the_papers_tables() -> None:
    """Tables 3 to 5, as SB3 receives them."""
    dqn = _built("dqn", "CartPole-v1")
    assert isinstance(dqn, DQN)
    assert (dqn.batch_size, dqn.buffer_size, dqn.target_update_interval) == (128, 50_000, 100)
    assert dqn.exploration_schedule(1 - 20_000 / 1_000_000) == pytest.approx(0.1)
    assert dqn.exploration_schedule(1 - 10_000 / 1_000_000) == pytest.approx(0.55)
    assert dqn.q_net.net_arch == [512, 512]
    m_dqn = _built("m-dqn", "MinAtar/Breakout-v1", buffer_size=100)
    assert isinstance(m_dqn, MDQN)
    assert (m_dqn.temperature, m_dqn.scaling, m_dqn.clip, m_dqn.batch_size) == (0.03, 0.9, -1.0, 32)
    ppo = _built("ppo", "MinAtar/Breakout-v1")
    assert isinstance(ppo, PPO)
    assert (ppo.n_steps, ppo.n_epochs, ppo.vf_coef, ppo.ent_coef, ppo.batch_size) == (1024, 3, 1.0, 0.01, 256)
    for progress in (1.0, 0.5, 0.0):  # of 1M steps, while the table's annealing takes 5M
        left = 1 - 0.2 * (1 - progress)
        assert ppo.clip_range(progress) == pytest.approx(0.1 * left)  # type: ignore[operator]
        assert ppo.lr_schedule(progress) == pytest.approx(2.5e-4 * left)
    layers = ppo.policy.features_extractor.layers  # type: ignore[union-attr]
    assert [type(layer) for layer in layers] == [nn.Conv2d, nn.Tanh, nn.Flatten, nn.Linear, nn.Tanh]
    trpo: Any = _built("trpo", "CartPole-v1")
    assert (trpo.target_kl, trpo.n_steps, trpo.batch_size, trpo.learning_rate) == (0.01, 2048, 64, 3e-4)
    zoo = presets.load("dqn-zoo-lunarlander")
    assert zoo.hyperparameters["exploration_fraction"] == 0.12


def _built(algo: str, env_id: str, **changes: Any) -> Any:
    preset = presets.for_environment(env_id, algo)
    values = preset.hyperparameters | changes
    return build(algo, preset.policy, make_envs(env_id, 1), values, timesteps=1_000_000, seed=0, device="cpu")


SMALL_RIVALS: dict[str, list[str]] = {
    "dqn": ["--buffer-size", "300", "--batch-size", "8", "--learning-starts", "20"],
    "m-dqn": ["--buffer-size", "300", "--batch-size", "8", "--learning-starts", "20"],
    "ppo": ["--n-steps", "64", "--batch-size", "32", "--n-epochs", "2"],
    "trpo": ["--n-steps", "64", "--batch-size", "32"],
}


@pytest.mark.parametrize("env_id", ["CartPole-v1", "MinAtar/Breakout-v1"])
@pytest.mark.parametrize("algo", RIVALS)
def test_a_resumed_rival_is_the_same_run(
    algo: str, env_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Parameters, optimiser, annealed schedules and rows; stopped in the middle, between two rollouts."""
    monkeypatch.setattr("staq.runs.RIVALS_SAVE_EVERY", 128)
    common = ["train", env_id, "--algo", algo, "--threads", "1", "--eval-every", "128", "--eval-episodes", "2"]
    common += [*SMALL_RIVALS[algo], "--timesteps", "512"]
    assert main([*common, "--out", str(tmp_path / "whole")]) == 0
    with monkeypatch.context() as patch:
        patch.setattr("staq.runs.Interrupt._on_rollout_start", _stop_at(256))
        asked = property(lambda self: self.num_timesteps >= 256, _ignore)
        patch.setattr("staq.runs.Interrupt.requested", asked, raising=False)
        assert main([*common, "--out", str(tmp_path / "parts")]) == 0
    assert "Continue with" in capsys.readouterr().out
    assert main(["train", "--resume", str(tmp_path / "parts")]) == 0
    rows = [_without_seconds(tmp_path / name / "evaluations.csv") for name in ("whole", "parts")]
    assert rows[0] == rows[1]
    whole, parts = (read(tmp_path / name / "model" / "parameters.pt")["policy"] for name in ("whole", "parts"))
    for name, weight in whole.items():
        assert torch.equal(weight, parts[name]), name
    assert main(["eval", str(tmp_path / "parts"), "--episodes", "2"]) == 0
    assert main(["eval", str(tmp_path / "parts"), "--best", "--episodes", "2"]) == 0
    assert main(["watch", str(tmp_path / "parts"), "--out", str(tmp_path / "film.gif")]) == 0
    assert main(["plot", str(tmp_path / "whole"), str(tmp_path / "parts"), "--out", str(tmp_path / "plot.png")]) == 0
    assert "2 seeds" in capsys.readouterr().out


def _stop_at(step: int) -> Any:
    def on_rollout_start(self: Any) -> None:
        self.stopped = self.num_timesteps >= step

    return on_rollout_start


def _ignore(self: Any, value: bool) -> None:
    """``requested`` is decided by the step."""


def _without_seconds(path: Path) -> list[str]:
    return [line.rsplit(",", 1)[0] for line in path.read_text().splitlines()]


@pytest.mark.parametrize("algo", RIVALS)
def test_players_have_probabilities_and_leave_the_run_alone(algo: str) -> None:
    model = _built(algo, "MinAtar/Breakout-v1", **({"buffer_size": 100} if "dqn" in algo else {}))
    player, obs = Player(model), np.zeros((5, 10, 10, 4), dtype=bool)
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


def test_small_boards_of_any_size() -> None:
    from gymnasium import spaces

    space = spaces.Box(0, 1, (7, 9, 2), dtype=np.uint8)
    assert SmallImage(space)(torch.rand(3, 7, 9, 2)).shape == (3, 128)


def test_a_preset_of_another_algorithm_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "CartPole-v1", "--algo", "ppo", "--preset", "dqn-classic"]) == 1
    assert "is for dqn, not for ppo" in capsys.readouterr().err
    assert main(["train", "CartPole-v1", "--algo", "natgrad", "--actor-steps", "3"]) == 1
    assert "natgrad has no hyperparameter 'actor_steps'" in capsys.readouterr().err


@pytest.mark.parametrize(("timesteps", "at_half", "at_end"), [(5_000_000, 0.05, 0.0), (500_000, 0.095, 0.09)])
def test_a_short_run_of_ppo_is_the_beginning_of_a_long_one(timesteps: int, at_half: float, at_end: float) -> None:
    preset = presets.load("ppo-minatar")
    env = make_envs("MinAtar/Breakout-v1", 1)
    model = build("ppo", preset.policy, env, preset.hyperparameters, timesteps, seed=0, device="cpu")
    assert [model.clip_range(left) for left in (1.0, 0.5, 0.0)] == pytest.approx([0.1, at_half, at_end])  # type: ignore[attr-defined]
