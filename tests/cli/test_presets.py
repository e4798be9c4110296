"""Presets are data: complete, read, and refused when misspelt."""

from __future__ import annotations

import pytest

from staq.cli import presets


@pytest.mark.parametrize("name", presets.names())
def test_every_preset_loads(name: str) -> None:
    assert presets.load(name).title


@pytest.mark.parametrize(
    ("env_id", "name"),
    [
        ("CartPole-v1", "classic"),
        ("LunarLander-v3", "classic"),
        ("MinAtar/Seaquest-v1", "minatar"),
        ("FrozenLake-v1", "classic"),
        ("HalfCheetah-v5", "mujoco"),
        ("Walker2d-v4", "mujoco"),
        ("Ant-v4", "mujoco-large"),
        ("Humanoid-v5", "mujoco-large"),
    ],
)
def test_an_environment_finds_its_preset(env_id: str, name: str) -> None:
    assert presets.for_environment(env_id).name == name


def test_the_papers_table() -> None:
    """Table 2, value by value, as an algorithm would be built with it."""
    classic = presets.defaults() | presets.load("classic").hyperparameters
    minatar = presets.defaults() | presets.load("minatar").hyperparameters
    both = {
        "gamma": 0.99,
        "memory_size": 300,
        "policy_update_interval": 5000,
        "target_update_interval": 200,
        "epsilon": 0.05,
        "kl_weight": 20,
        "ent_weight_init": 2.0,
        "ent_weight_final": 0.4,
        "learning_rate": 1e-4,
        "buffer_size": 50_000,
        "batch_size": 256,
        "n_critics": 2,
    }
    for name, value in both.items():
        assert classic[name] == minatar[name] == value, name
    assert (classic["reward_scale"], minatar["reward_scale"]) == (10, 100)
    assert (classic["ent_decay_steps"], minatar["ent_decay_steps"]) == (500_000, 1_000_000)
    assert presets.load("minatar-release").hyperparameters["reward_scale"] == 200


def test_the_papers_target_intervals_for_mujoco() -> None:
    """App. E."""
    intervals = [presets.load(name).hyperparameters["target_update_interval"] for name in ("mujoco", "mujoco-large")]
    assert intervals == [1000, 2500]


def test_misspellings_name_the_nearest() -> None:
    with pytest.raises(ValueError, match="'memory_sise'. Did you mean 'memory_size'"):
        presets.check_hyperparameters({"memory_sise": 3})
    with pytest.raises(ValueError, match="no preset 'clasic'. Did you mean 'classic'"):
        presets.load("clasic")
    with pytest.raises(ValueError, match="'learning_starts' has no meaning"):
        presets.check_hyperparameters({"learning_starts": 3})
