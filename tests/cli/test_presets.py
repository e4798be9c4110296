"""Presets are data: complete, read, and refused when misspelt."""

from __future__ import annotations

from typing import Any

import pytest

from staq import registry
from staq.cli import presets
from staq.cli.main import main
from staq.cli.runs import configured
from staq.policy_evaluation.lambda_returns import LambdaReturns
from staq.registry import EVALUATIONS


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


@pytest.mark.parametrize(
    ("env_id", "name"),
    [
        ("CartPole-v1", "classic-lambda"),
        ("LunarLander-v3", "lunarlander-lambda"),
        ("MountainCar-v0", "mountaincar-lambda"),
        ("MinAtar/Seaquest-v1", "minatar-lambda"),
        ("FrozenLake-v1", "classic-lambda"),
        ("HalfCheetah-v5", "mujoco-lambda"),
    ],
)
@pytest.mark.parametrize("algo", ["staq", "natgrad"])
def test_lambda_returns_have_presets_of_their_own(env_id: str, name: str, algo: str) -> None:
    assert presets.for_environment(env_id, algo, "lambda").name == name


def test_an_evaluation_takes_the_presets_of_what_it_derives_from(monkeypatch: pytest.MonkeyPatch) -> None:
    class Mine(LambdaReturns):
        """Another loss, say."""

    load = registry._loaded
    monkeypatch.setitem(EVALUATIONS, "mine", "nowhere:Mine")
    monkeypatch.setattr(registry, "_loaded", lambda home, *a: Mine if home == "nowhere:Mine" else load(home, *a))
    assert presets.family("mine") == "lambda"
    assert presets.for_environment("CartPole-v1", evaluation="mine").name == "classic-lambda"
    assert configured("CartPole-v1", presets.load("classic-lambda"), overrides={"evaluation": "mine"}).n_envs == 64


def test_a_preset_of_another_evaluation_is_refused() -> None:
    with pytest.raises(ValueError, match="classic is for evaluation 'replay', not 'lambda'.*classic-lambda"):
        configured("CartPole-v1", presets.load("classic"), overrides={"evaluation": "lambda"})
    with pytest.raises(ValueError, match="'buffer_size' belongs to evaluation='replay'"):
        configured("CartPole-v1", presets.load("classic-lambda"), overrides={"buffer_size": 100})


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


DQN_TABLE: dict[str, Any] = {"gamma": 0.99, "train_freq": 1, "gradient_steps": -1, "exploration_final_eps": 0.1}
DQN_TABLE |= {"exploration_steps": 20_000}
DQN_CLASSIC = DQN_TABLE | {"target_update_interval": 100, "learning_rate": 1e-3, "buffer_size": 50_000}
DQN_CLASSIC |= {"batch_size": 128, "policy_kwargs": {"net_arch": [512, 512]}}
DQN_MINATAR = DQN_TABLE | {"target_update_interval": 8000, "learning_rate": 2.5e-4, "buffer_size": 1_000_000}
DQN_MINATAR |= {"batch_size": 32}
WIDE_TANH = {"policy_kwargs": {"net_arch": [256, 256], "activation_fn": "Tanh"}}
TANH = {"policy_kwargs": {"activation_fn": "Tanh"}}
GAE = {"gamma": 0.99, "gae_lambda": 0.95}
TABLES: dict[str, dict[str, Any]] = {
    "dqn-classic": DQN_CLASSIC,
    "dqn-minatar": DQN_MINATAR,
    "m-dqn-classic": DQN_CLASSIC | {"temperature": 0.03, "scaling": 1.0, "clip": -1.0},
    "m-dqn-minatar": DQN_MINATAR | {"temperature": 0.03, "scaling": 0.9, "clip": -1.0},
    "ppo-classic": GAE
    | WIDE_TANH
    | {"n_steps": 2048, "n_epochs": 10, "vf_coef": 0.5, "ent_coef": 0.0, "batch_size": 64}
    | {"clip_range": 0.2, "learning_rate": 3e-4},
    "ppo-minatar": GAE
    | TANH
    | {"n_steps": 1024, "n_epochs": 3, "vf_coef": 1.0, "ent_coef": 0.01, "batch_size": 256}
    | {"clip_range": "lin_0.1", "learning_rate": "lin_2.5e-4", "anneal_steps": 5_000_000},
    "trpo-classic": GAE | WIDE_TANH | {"n_steps": 2048, "target_kl": 0.01, "learning_rate": 3e-4, "batch_size": 64},
    "trpo-minatar": GAE | TANH | {"n_steps": 2048, "target_kl": 0.01, "learning_rate": 2.5e-4, "batch_size": 256},
    "dqn-zoo-lunarlander": {"learning_rate": 6.3e-4, "batch_size": 128, "buffer_size": 50_000, "learning_starts": 0}
    | {"gamma": 0.99, "target_update_interval": 250, "train_freq": 4, "gradient_steps": -1}
    | {"exploration_steps": 12_000, "exploration_final_eps": 0.1, "policy_kwargs": {"net_arch": [256, 256]}},
}


@pytest.mark.parametrize("name", TABLES)
def test_presets_are_the_papers_tables(name: str) -> None:
    """Tables 3 to 5, and RL Zoo's DQN, value by value: nothing more and nothing less."""
    assert presets.load(name).hyperparameters == TABLES[name]


def test_a_preset_of_another_algorithm_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "CartPole-v1", "--algo", "ppo", "--preset", "dqn-classic"]) == 1
    assert "is for dqn, not for ppo" in capsys.readouterr().err
    assert main(["train", "CartPole-v1", "--algo", "natgrad", "--actor-steps", "3"]) == 1
    assert "natgrad has no hyperparameter 'actor_steps'" in capsys.readouterr().err
