"""Every algorithm of the family on the one loop: learns, repeats, resumes, saves, exports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import IdentityEnv

import staq
from staq import ACMProj, ACNoKL, Checkpoints, ExactPMD, NatGrad, StaQ, load_policy, registry, resume
from staq.hyperparameters import Shared, defaults_of
from staq.loop import PolicyMirrorDescent
from staq.policy_evaluation.replay_regression import ReplayRegression
from staq.registry import ALGORITHMS
from staq.tabular.mdp import MDP
from staq.tabular.mirror_descent import Settings, run
from tests.conftest import SMALL, assert_identical, host_reads

OWN: dict[str, dict[str, Any]] = {
    "staq": {"memory_size": 3},
    "exact-pmd": {},
    "ac-nokl": {"actor_steps": 30},
    "ac-mproj": {"actor_steps": 30},
    "ac-directopt": {"actor_steps": 30},
    "natgrad": {"cg_steps": 3, "max_kl": 0.01},
}
SHARED = {name: value for name, value in SMALL.items() if name != "memory_size"}


def made(algo: str, env_id: str = "CartPole-v1", **more: Any) -> PolicyMirrorDescent:
    images = env_id.startswith("MinAtar")
    network = {"net_arch": [16], "conv_arch": [(16, 3, 1)]} if images else {"net_arch": [16, 16]}
    settings = SHARED | OWN[algo] | {"policy_kwargs": network} | more
    return ALGORITHMS[algo].load()("CnnPolicy" if images else "MlpPolicy", make_vec_env(env_id, 4, seed=7), **settings)


@pytest.mark.parametrize("algo", registry.ours())
def test_the_same_seed_is_the_same_run(algo: str) -> None:
    first, second, other = made(algo).learn(800), made(algo).learn(800), made(algo, seed=8).learn(800)
    assert_identical(first, second)
    assert not torch.equal(first.policy.q_net.weights["mlp.0.weight"], other.policy.q_net.weights["mlp.0.weight"])


@pytest.mark.parametrize("env_id", ["CartPole-v1", pytest.param("MinAtar/Breakout-v1", marks=pytest.mark.slow)])
@pytest.mark.parametrize("algo", registry.ours())
def test_resuming_is_exact(algo: str, env_id: str, tmp_path: Path) -> None:
    whole = made(algo, env_id).learn(1200)
    made(algo, env_id).learn(600, callback=Checkpoints(tmp_path))
    model = resume(made(algo, env_id), tmp_path)
    assert model.num_timesteps == 600
    assert_identical(whole, model.learn(600, reset_num_timesteps=False))


@pytest.mark.parametrize("algo", registry.ours())
def test_files_hold_the_same_policy(algo: str, tmp_path: Path) -> None:
    model = made(algo).learn(800)
    obs = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    expected = model.action_probabilities(obs)
    assert np.ptp(expected) > 0.001
    model.save(tmp_path / "model")
    loaded = ALGORITHMS[algo].load().load(tmp_path / "model", env=model.env)
    np.testing.assert_array_equal(loaded.action_probabilities(obs), expected)
    loaded.learn(200, reset_num_timesteps=False)
    exported, _ = load_policy(model.export(tmp_path / "exported"))
    np.testing.assert_allclose(exported.action_probabilities(obs), expected, atol=1e-7)


@pytest.mark.parametrize("algo", registry.ours())
def test_it_learns_a_bandit(algo: str) -> None:
    """The action is the observation: 30 iterations with the settings of a small problem."""
    env = make_vec_env(lambda: IdentityEnv(dim=3, ep_length=20), n_envs=10, seed=0)
    settings: dict[str, Any] = {"buffer_size": 2000, "policy_update_interval": 200, "learning_rate": 3e-3}
    settings |= {"reward_scale": 1.0, "kl_weight": 0.2, "ent_weight_init": 0.3, "ent_weight_final": 0.05}
    settings |= {"ent_decay_steps": 3000, "target_update_interval": 20, "batch_size": 64, "gamma": 0.5}
    own = OWN[algo] | ({"actor_steps": 200} if "actor_steps" in OWN[algo] else {})
    own |= {"max_kl": 0.05, "cg_steps": 10} if algo == "natgrad" else {}
    network = {"net_arch": [32]}
    model = ALGORITHMS[algo].load()("MlpPolicy", env, seed=0, device="cpu", policy_kwargs=network, **settings, **own)
    model.learn(6000)
    probabilities = model.action_probabilities(np.arange(3))
    assert probabilities.argmax(-1).tolist() == [0, 1, 2]
    assert probabilities.max(-1).min() > 0.8


class Ring(gymnasium.Env[int, int]):
    """Four states in a ring, an action is how far to go; episodes are cut after 20 steps but never end."""

    REWARD = np.array([[1.0, 0.0, 0.3], [0.0, -0.5, 0.8], [0.2, 0.9, 0.0], [0.4, 0.0, -1.0]])
    observation_space, action_space = spaces.Discrete(4), spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self.state, self.steps = int(self.np_random.integers(4)), 0
        return self.state, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        reward, self.state, self.steps = self.REWARD[self.state, action], (self.state + int(action)) % 4, self.steps + 1
        return self.state, float(reward), False, self.steps == 20, {}

    @classmethod
    def as_mdp(cls, discount: float) -> MDP:
        goes_to = (np.arange(4)[:, None] + np.arange(3)).ravel() % 4
        return MDP(cls.REWARD, np.eye(4)[goes_to], discount)


@pytest.mark.parametrize(
    ("algo", "own", "exact"),
    [
        ("staq", {"memory_size": 2}, {"memory_size": 2}),
        ("exact-pmd", {}, {}),
        ("ac-mproj", {"actor_steps": 600}, {}),
        ("ac-directopt", {"actor_steps": 600}, {}),
        ("ac-nokl", {"actor_steps": 600}, {"kl_weight": 0.0}),
    ],
)
def test_the_whole_loop_is_tabular_policy_iteration_where_it_can_be(
    algo: str, own: dict[str, Any], exact: dict[str, Any]
) -> None:
    """A table for a network, trained to convergence, from sampled transitions: the policies of Secs. 4.2 and 5."""
    tau, eta, gamma = 0.3, 0.6, 0.6
    settings: dict[str, Any] = {
        "gamma": gamma,
        "kl_weight": eta,
        "ent_weight_init": tau * np.log(3),
        "ent_weight_final": tau * np.log(3),
        "reward_scale": 1.0,
        "epsilon": 0.5,
        "learning_rate": 0.01,
        "batch_size": 128,
        "buffer_size": 1200,
        "policy_update_interval": 600,
        "gradient_steps": 1200,
        "target_update_interval": 40,
        "policy_kwargs": {"net_arch": []},
    }
    model = ALGORITHMS[algo].load()(
        "MlpPolicy", make_vec_env(Ring, n_envs=20, seed=0), seed=0, device="cpu", **settings, **own
    )
    expected = run(Ring.as_mdp(gamma), Settings(**{"entropy_weight": tau, "kl_weight": eta} | exact), iterations=4)
    for log_pi in expected.log_pi[1:]:
        model.learn(600, reset_num_timesteps=False)
        np.testing.assert_allclose(model.action_probabilities(np.arange(4)), np.exp(log_pi), atol=0.01)


def test_actors_learn_at_the_critics_rate() -> None:
    model = made("ac-mproj", learning_rate=lambda left: 1e-3 * (1 + left)).learn(400)
    optimizer = model.policy.improvement.optimizer
    assert optimizer is not None
    assert optimizer.param_groups[0]["lr"] == model.policy.optimizer.param_groups[0]["lr"] == 1e-3


@pytest.mark.parametrize("algo", ["ac-nokl", "ac-mproj", "ac-directopt"])
def test_the_actor_loop_reads_nothing_back(algo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = made(algo).learn(400)
    update = model.policy.improvement
    train, found_in_training = update.train_actor, []

    def watched(states: Any, step_size: Any) -> None:
        assert len(states.q) == len(states.log_pi)  # computed before the loop
        with host_reads(monkeypatch) as found:
            train(states, step_size)
        found_in_training.extend(found)

    monkeypatch.setattr(update, "train_actor", watched)
    model.learn(200, reset_num_timesteps=False)
    assert found_in_training == ["_local_scalar_dense"]  # the mean loss, once, after the last step


def test_hyperparameters_are_those_of_three_groups() -> None:
    shared = set(defaults_of([Shared, ReplayRegression.Settings]))
    assert set(defaults_of(StaQ.groups())) - shared == {"memory_size", "weighting", "compression", "merge_tolerance"}
    assert set(defaults_of(ACNoKL.groups())) - shared == {"actor_steps"}
    assert defaults_of(NatGrad.groups())["max_kl"] == 0.001
    assert defaults_of(NatGrad.groups())["learning_rate"] == 1e-4
    assert defaults_of(ExactPMD.groups())["memory_size"] is None
    assert defaults_of(ACMProj.groups())["actor_steps"] == 5000
    for name in defaults_of(StaQ.groups()):  # what help() shows
        assert f":param {name}:" in str(StaQ.__doc__)


def test_positional_arguments_are_those_of_sb3() -> None:
    assert StaQ("MlpPolicy", "CartPole-v1", 3e-4, 1000).buffer_size == 1000


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(TypeError, match=r"ACMProj has no argument 'actor_step'. Did you mean 'actor_steps'\?"):
        ACMProj("MlpPolicy", "CartPole-v1", actor_step=3)
    with pytest.raises(TypeError, match="NatGrad has no argument 'memory_size'"):
        NatGrad("MlpPolicy", "CartPole-v1", memory_size=3)
    with pytest.raises(ValueError, match="actor_steps=0"):
        ACMProj("MlpPolicy", "CartPole-v1", actor_steps=0)
    with pytest.raises(ValueError, match="ExactPMD keeps every"):
        ExactPMD("MlpPolicy", "CartPole-v1", memory_size=3)


def test_a_checkpoint_of_another_algorithm_is_refused(tmp_path: Path) -> None:
    made("ac-mproj").learn(200, callback=Checkpoints(tmp_path))
    with pytest.raises(ValueError, match="algorithm='ACMProj'"):
        resume(made("ac-nokl"), tmp_path)


def test_public_names_exist() -> None:
    for name in staq.__all__:
        assert getattr(staq, name) is not None
