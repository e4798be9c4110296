"""SB3's algorithms built from presets: what they are built with, and what cannot work."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from stable_baselines3 import DQN, PPO
from torch import nn

from staq.baselines import build
from staq.baselines.munchausen_dqn import MDQN
from staq.cli import presets
from staq.cli.main import main
from staq.envs.make import make_envs
from tests.baselines.conftest import built


def test_presets_reach_sb3() -> None:
    """What is written in our terms: decay steps, annealing, networks."""
    dqn = built("dqn", "CartPole-v1")
    assert isinstance(dqn, DQN)
    assert dqn.exploration_schedule(1 - 20_000 / 1_000_000) == pytest.approx(0.1)
    assert dqn.exploration_schedule(1 - 10_000 / 1_000_000) == pytest.approx(0.55)
    assert dqn.q_net.net_arch == [512, 512]
    m_dqn = built("m-dqn", "MinAtar/Breakout-v1", buffer_size=100)
    assert isinstance(m_dqn, MDQN)
    assert _layers(m_dqn.q_net.features_extractor.layers) == [nn.Conv2d, nn.ReLU, nn.Flatten]
    assert [tuple(w.shape) for w in m_dqn.q_net.q_net.parameters()] == [(128, 1024), (128,), (3, 128), (3,)]
    ppo = built("ppo", "MinAtar/Breakout-v1")
    assert isinstance(ppo, PPO)
    for progress in (1.0, 0.5, 0.0):  # of 1M steps, while the table's annealing takes 5M
        left = 1 - 0.2 * (1 - progress)
        assert ppo.clip_range(progress) == pytest.approx(0.1 * left)  # type: ignore[operator]
        assert ppo.lr_schedule(progress) == pytest.approx(2.5e-4 * left)
    policy: Any = ppo.policy
    assert _layers(policy.features_extractor.layers) == [nn.Conv2d, nn.Tanh, nn.Flatten]
    for branch in (policy.mlp_extractor.policy_net, policy.mlp_extractor.value_net):
        assert _layers(branch) == [nn.Linear, nn.Tanh]
        assert branch[0].out_features == 128


def _layers(module: Any) -> list[type]:
    return [type(layer) for layer in module]


@pytest.mark.parametrize(("timesteps", "at_half", "at_end"), [(5_000_000, 0.05, 0.0), (500_000, 0.095, 0.09)])
def test_a_short_run_of_ppo_is_the_beginning_of_a_long_one(timesteps: int, at_half: float, at_end: float) -> None:
    preset = presets.load("ppo-minatar")
    env = make_envs("MinAtar/Breakout-v1", 1)
    model = build("ppo", preset.policy, env, preset.hyperparameters, timesteps, seed=0, device="cpu")
    assert [model.clip_range(left) for left in (1.0, 0.5, 0.0)] == pytest.approx([0.1, at_half, at_end])  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("ppo --batch-size 1", "ppo cannot be built with these settings.*batch_size"),
        ("ppo --n-steps 0", "n_steps=0: it must be a whole number of at least 1"),
        ("ppo --clip-range abc", "clip_range='abc': it must be a number of at least 0 or a schedule"),
        ("ppo --learning-rate lin_x", "learning_rate='lin_x': it must be a number"),
        ("ppo --anneal-steps 0", "anneal_steps=0"),
        ("ppo --policy CnnPolicy", "CnnPolicy reads boards and images"),
        ("dqn --batch-size 0", "batch_size=0"),
        ("dqn --gamma abc", "gamma='abc'"),
        ("dqn --exploration-steps 0", "exploration_steps=0"),
        ("dqn --exploration-fraction 0.5", "use exploration_steps"),
        ("dqn --policy-kwargs {activation_fn='Foo'}", "activation_fn='Foo' is no layer"),
        ("m-dqn --scaling abc", "scaling='abc': it must be a number"),
        ("m-dqn --temperature 0", "temperature=0: it must be a positive number"),
    ],
)
def test_what_cannot_work_is_named(
    words: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    run = ["train", "CartPole-v1", "--timesteps", "64", "--out", str(out), "--algo", *words.split()]
    assert main(run) == 1
    assert re.search(message, capsys.readouterr().err)
    assert not out.exists()


def test_one_update_per_step_with_several_environments() -> None:
    settings = presets.load("dqn-classic").hyperparameters | {"buffer_size": 1000, "policy_kwargs": {"net_arch": [8]}}
    model = build("dqn", "MlpPolicy", make_envs("CartPole-v1", 4), settings, 1000, seed=0, device="cpu")
    assert isinstance(model, DQN)
    model.learn(500)
    assert model._n_updates == model.num_timesteps - model.learning_starts
