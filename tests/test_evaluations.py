"""Every policy improvement on λ-returns: repeats, resumes, saves, exports, learns; and what one argument brings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import IdentityEnv

from staq import Checkpoints, StaQ, load_policy, registry, resume
from staq.networks.optimizer import RAdam
from staq.registry import ALGORITHMS
from tests.conftest import Endless, StopAt, assert_identical, lambda_model, small_model


def made(algo: str, env_id: str = "CartPole-v1", **more: Any) -> Any:
    own: dict[str, Any] = {"memory_size": 3} if algo == "staq" else {}
    if algo == "natgrad":
        own = {"cg_steps": 3, "max_kl": 0.01, "max_states": 100}
    return lambda_model(env_id, algorithm=ALGORITHMS[algo].class_name, **own | more)


@pytest.mark.parametrize("algo", registry.ours())
def test_the_same_seed_is_the_same_run(algo: str) -> None:
    first, second, other = made(algo).learn(800), made(algo).learn(800), made(algo, seed=8).learn(800)
    assert_identical(first, second)
    assert not torch.equal(first.policy.q_net.weights["mlp.0.weight"], other.policy.q_net.weights["mlp.0.weight"])


@pytest.mark.parametrize(
    ("env_id", "arguments"),
    [
        ("CartPole-v1", {"behaviour": "sticky"}),
        ("MinAtar/Breakout-v1", {"rollouts_per_update": 2}),
        ("Pendulum-v1", {"lr_decay_steps": 1500, "n_critics": 2}),
    ],
)
@pytest.mark.parametrize("algo", registry.ours())
def test_resuming_is_exact(algo: str, env_id: str, arguments: dict[str, Any], tmp_path: Path) -> None:
    """Learning rate and all: killed in an iteration, it goes on from the end of the one before."""
    whole = made(algo, env_id, **arguments).learn(1200)
    made(algo, env_id, **arguments).learn(1200, callback=[Checkpoints(tmp_path, seconds=0.0), StopAt(701)])
    model = resume(made(algo, env_id, **arguments), tmp_path)
    assert model.num_timesteps == 600
    assert_identical(whole, model.learn(600, reset_num_timesteps=False))


@pytest.mark.parametrize("env_id", ["CartPole-v1", "MinAtar/Breakout-v1", "Pendulum-v1"])
@pytest.mark.parametrize("algo", registry.ours())
def test_files_hold_the_same_policy(algo: str, env_id: str, tmp_path: Path) -> None:
    model = made(algo, env_id).learn(600)
    obs = model.env.reset()
    expected = model.action_probabilities(obs)
    model.save(tmp_path / "model")
    loaded = ALGORITHMS[algo].load().load(tmp_path / "model", env=model.env)
    assert loaded.policy.architecture.norm == "layer"
    assert loaded.policy_update_interval == 200
    np.testing.assert_array_equal(loaded.action_probabilities(obs), expected)
    loaded.learn(200, reset_num_timesteps=False)
    exported, _ = load_policy(model.export(tmp_path / "exported"))
    np.testing.assert_allclose(exported.action_probabilities(obs), expected, atol=1e-7)
    np.testing.assert_array_equal(
        model.predict(obs, deterministic=True)[0], exported.predict(obs, deterministic=True)[0]
    )


@pytest.mark.parametrize(
    "space", [spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(3), spaces.Box(-1, 1, (2,)), spaces.Discrete(3, start=1)]
)
@pytest.mark.parametrize("algo", registry.ours())
def test_every_action_space(algo: str, space: spaces.Space[Any]) -> None:
    env = make_vec_env(lambda: Endless(action_space=space), 4, seed=1)
    model = ALGORITHMS[algo].load()("MlpPolicy", env, evaluation="lambda", policy_update_interval=128, device="cpu")
    model.learn(256)
    assert space.contains(model.predict(env.reset())[0][0])


@pytest.mark.parametrize("algo", registry.ours())
def test_it_learns_a_bandit(algo: str) -> None:
    """The action is the observation: with the defaults but for the size of the problem."""
    env = make_vec_env(lambda: IdentityEnv(dim=3, ep_length=20), n_envs=10, seed=0)
    own = {"max_kl": 0.05} if algo == "natgrad" else {}
    settings: dict[str, Any] = {"gamma": 0.5, "policy_update_interval": 400, "ent_decay_steps": 3000}
    settings |= {"learning_rate": 0.01, "n_epochs": 8, "kl_weight": 0.05}
    model = ALGORITHMS[algo].load()(
        "MlpPolicy", env, evaluation="lambda", seed=0, device="cpu", policy_kwargs={"net_arch": [32]}, **settings, **own
    )
    model.learn(8000)
    probabilities = model.action_probabilities(np.arange(3))
    assert probabilities.argmax(-1).tolist() == [0, 1, 2]
    assert probabilities.max(-1).min() > 0.8


# ---------------------------------------------------------------------- one argument suffices


def test_one_argument_brings_its_defaults_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    env = make_vec_env("CartPole-v1", 50)
    model = StaQ("MlpPolicy", env, evaluation="lambda", kl_weight=0.7, verbose=1, device="cpu")
    assert (model.kl_weight, model.n_critics, model.reward_scale) == (0.7, 1, 1.0)
    assert model.policy_update_interval == 2050, "what 50 environments divide"
    assert model.policy.architecture.norm == "layer"
    assert isinstance(model.policy.optimizer, RAdam)
    printed = capsys.readouterr().out
    assert "Defaults of evaluation='lambda':" in printed
    assert "policy_update_interval   2050" in printed
    assert "norm                     layer" in printed
    assert "kl_weight" not in printed, "as the user gave it"


def test_what_the_user_gives_wins() -> None:
    model = lambda_model(policy_kwargs={"norm": None, "optimizer_class": torch.optim.SGD}, policy_update_interval=128)
    assert model.policy.architecture.norm is None
    assert type(model.policy.optimizer) is torch.optim.SGD
    assert model.policy_update_interval == 128


def test_the_papers_algorithm_stays_the_papers() -> None:
    model = small_model()
    assert model.evaluation == "replay"
    assert model.policy.architecture.norm is None
    assert type(model.policy.optimizer) is torch.optim.Adam


def test_one_environment_works_and_is_told_what_more_would_bring(caplog: pytest.LogCaptureFixture) -> None:
    model = lambda_model(n_envs=1)
    model.learn(200)
    model.learn(200)
    lambda_model(n_envs=2).learn(200)
    assert ["make_vec_env" in record.getMessage() for record in caplog.records] == [True]


@pytest.mark.parametrize("norm", ["layer", None])
def test_the_replay_takes_normalised_networks_too(norm: Any) -> None:
    model = small_model(policy_kwargs={"net_arch": [16, 16], "norm": norm}).learn(600)
    assert ("mlp.0.norm.weight" in model.policy.q_net.weights) == (norm == "layer")


# ---------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"buffer_size": 1000}, "'buffer_size' belongs to evaluation='replay'"),
        ({"target_update_interval": 10}, "'target_update_interval' belongs to evaluation='replay'"),
        ({"evaluation": "replay", "trace_decay": 0.9}, "'trace_decay' belongs to evaluation='lambda'"),
        ({"trace_decay": 1.2}, "trace_decay=1.2.*between 0 and 1"),
        ({"n_epochs": 0}, "n_epochs=0.*at least 1"),
        ({"max_grad_norm": 0.0}, "max_grad_norm=0.0.*positive"),
        ({"lr_decay_steps": 0}, "lr_decay_steps=0.*or None for the whole run"),
        ({"policy_update_interval": 202}, "202 is not a multiple of the 4 environments: use 200 or 204"),
        ({"batch_size": 256}, "batch_size=256 is more than the policy_update_interval=200"),
        ({"evaluation": "lamda"}, "'lamda'. Did you mean 'lambda'"),
        ({"policy_kwargs": {"norm": "batch"}}, "norm='batch'.*\"layer\""),
        ({"policy_kwargs": {"optimizer_class": "Adm"}}, "optimizer_class='Adm'"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        lambda_model(**arguments)


def test_there_is_no_replay_to_save(tmp_path: Path) -> None:
    model = lambda_model()
    for ask in (model.save_replay_buffer, model.load_replay_buffer):
        with pytest.raises(ValueError, match="no replay under evaluation='lambda'"):
            ask(tmp_path / "replay")


def test_a_checkpoint_of_the_other_evaluation_is_refused(tmp_path: Path) -> None:
    small_model().learn(200, callback=Checkpoints(tmp_path))
    with pytest.raises(ValueError, match="evaluation='replay', the model has 'lambda'"):
        resume(lambda_model(memory_size=3), tmp_path)


def test_checkpoints_of_short_iterations_are_seconds_apart(tmp_path: Path) -> None:
    """The first iteration's at once, the last's at the end; and those between when time has passed."""
    written = []
    saving = Checkpoints(tmp_path)
    write = saving.write
    saving.write = lambda: written.append(saving.training.progress) or write()  # type: ignore[method-assign]
    lambda_model().learn(2000, callback=saving)
    assert saving.seconds == 20.0
    assert written == [1, 10]
