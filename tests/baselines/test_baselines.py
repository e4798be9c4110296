"""M-DQN's target by hand, and SB3's algorithms through our command line: presets, resume, evaluation."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import FakeImageEnv, IdentityEnv
from torch import nn

from staq import Checkpoints, registry, resume
from staq.baselines import build
from staq.baselines.munchausen_dqn import MDQN, munchausen_target
from staq.baselines.networks import SmallImage
from staq.baselines.sb3_policy import SB3Policy
from staq.cli import presets
from staq.cli.main import main
from staq.envs.make import make_envs
from staq.registry import ALGORITHMS
from staq.storage.atomic_files import read
from staq.storage.training_state import SB3_TRANSITION


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
    | {"exploration_fraction": 0.12, "exploration_final_eps": 0.1, "policy_kwargs": {"net_arch": [256, 256]}},
}


@pytest.mark.parametrize("name", TABLES)
def test_presets_are_the_papers_tables(name: str) -> None:
    """Tables 3 to 5, and RL Zoo's DQN, value by value: nothing more and nothing less."""
    assert presets.load(name).hyperparameters == TABLES[name]


def test_presets_reach_sb3() -> None:
    """What is written in our terms: decay steps, annealing, networks."""
    dqn = _built("dqn", "CartPole-v1")
    assert isinstance(dqn, DQN)
    assert dqn.exploration_schedule(1 - 20_000 / 1_000_000) == pytest.approx(0.1)
    assert dqn.exploration_schedule(1 - 10_000 / 1_000_000) == pytest.approx(0.55)
    assert dqn.q_net.net_arch == [512, 512]
    m_dqn = _built("m-dqn", "MinAtar/Breakout-v1", buffer_size=100)
    assert isinstance(m_dqn, MDQN)
    assert _layers(m_dqn.q_net.features_extractor.layers) == [nn.Conv2d, nn.ReLU, nn.Flatten]
    assert [tuple(w.shape) for w in m_dqn.q_net.q_net.parameters()] == [(128, 1024), (128,), (3, 128), (3,)]
    ppo = _built("ppo", "MinAtar/Breakout-v1")
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


def test_trpos_value_network_learns_on_a_board() -> None:
    """sb3-contrib lets the critic train what it does not share with the actor: more than its last layer."""
    model = _built("trpo", "MinAtar/Breakout-v1", n_steps=64, batch_size=32)
    before = model.policy.mlp_extractor.value_net[0].weight.detach().clone()
    model.learn(64)
    assert not torch.equal(model.policy.mlp_extractor.value_net[0].weight, before)


def _built(algo: str, env_id: str, **changes: Any) -> Any:
    preset = presets.for_environment(env_id, algo)
    values = preset.hyperparameters | changes
    return build(algo, preset.policy, make_envs(env_id, 1), values, timesteps=1_000_000, seed=0, device="cpu")


SMALL_BASELINES: dict[str, list[str]] = {
    "dqn": ["--buffer-size", "200", "--batch-size", "8", "--learning-starts", "20"],
    "m-dqn": ["--buffer-size", "200", "--batch-size", "8", "--learning-starts", "20"],
    "ppo": ["--n-steps", "64", "--batch-size", "32", "--n-epochs", "2"],
    "trpo": ["--n-steps", "64", "--batch-size", "32"],
}


@pytest.mark.parametrize("env_id", ["CartPole-v1", "MinAtar/Breakout-v1"])
@pytest.mark.parametrize("algo", registry.baselines())
def test_a_resumed_baseline_is_the_same_run(
    algo: str, env_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Parameters, optimiser, annealed schedules and rows; stopped in the middle, between two rollouts."""
    monkeypatch.setattr("staq.cli.runs.BASELINES_SAVE_EVERY", 128)
    common = ["train", env_id, "--algo", algo, "--threads", "1", "--eval-every", "128", "--eval-episodes", "2"]
    common += [*SMALL_BASELINES[algo], "--timesteps", "512"]
    assert main([*common, "--out", str(tmp_path / "whole")]) == 0
    with monkeypatch.context() as patch:
        patch.setattr("staq.cli.progress.Interrupt._on_rollout_start", _stop_at(256))
        asked = property(lambda self: self.num_timesteps >= 256, _ignore)
        patch.setattr("staq.cli.progress.Interrupt.requested", asked, raising=False)
        assert main([*common, "--out", str(tmp_path / "parts")]) == 0
    assert "Continue with" in capsys.readouterr().out
    assert main(["train", "--resume", str(tmp_path / "parts")]) == 0
    for file in ("evaluations.csv", "monitor.csv"):
        rows = [_without_seconds(tmp_path / name / file) for name in ("whole", "parts")]
        assert rows[0] == rows[1], file
        assert len(rows[0]) > 4
    whole, parts = (read(tmp_path / name / "model" / "parameters.pt")["policy"] for name in ("whole", "parts"))
    for name, weight in whole.items():
        assert torch.equal(weight, parts[name]), name
    assert main(["eval", str(tmp_path / "parts"), "--episodes", "2"]) == 0
    assert main(["eval", str(tmp_path / "parts"), "--best", "--episodes", "2"]) == 0
    assert main(["watch", str(tmp_path / "parts"), "--out", str(tmp_path / "film.gif")]) == 0
    assert main(["plot", str(tmp_path / "whole"), str(tmp_path / "parts"), "--out", str(tmp_path / "plot.png")]) == 0
    assert "2 seeds" in capsys.readouterr().out


def test_a_replay_that_wrapped_comes_back_whole(tmp_path: Path) -> None:
    """Every transition, and which were cut by a time limit, from segments of which the oldest is partly gone."""
    models = []
    for folder in (tmp_path / "written", tmp_path / "unused"):
        env = make_vec_env(lambda: gymnasium.make("CartPole-v1", max_episode_steps=7), n_envs=2, seed=0)
        model = DQN("MlpPolicy", env, buffer_size=60, learning_starts=10, train_freq=1, seed=0, device="cpu")
        models.append(model.learn(130 if not models else 2, callback=Checkpoints(folder, 24)))
    written, resumed = (model.replay_buffer for model in models)
    assert written is not None
    assert resumed is not None
    assert written.full
    assert written.timeouts.any()
    resume(models[1], tmp_path / "written")
    assert (resumed.pos, resumed.full) == (written.pos, written.full)
    for part in SB3_TRANSITION:
        np.testing.assert_array_equal(getattr(resumed, part), getattr(written, part), err_msg=part)


def test_where_an_environment_cannot_be_restored_new_episodes_begin(tmp_path: Path) -> None:
    """New ones: not those that the run began with."""
    pytest.importorskip("Box2D")
    env_id = "LunarLander-v3"
    changes = {"buffer_size": 100, "learning_starts": 10}
    _built("dqn", env_id, **changes).learn(40, callback=Checkpoints(tmp_path, 20))
    model, first = _built("dqn", env_id, **changes), _built("dqn", env_id, **changes)
    with pytest.warns(UserWarning, match="begin new episodes"):
        resume(model, tmp_path)
    assert not any(np.allclose(model._last_obs, first.env.reset()) for _ in range(3))


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


def _stop_at(step: int) -> Any:
    def on_rollout_start(self: Any) -> None:
        self.stopped = self.num_timesteps >= step

    return on_rollout_start


def _ignore(self: Any, value: bool) -> None:
    """``requested`` is decided by the step."""


def _without_seconds(path: Path) -> list[str]:
    """And without the comment that a monitor begins with, which holds a time."""
    return [line.rsplit(",", 1)[0] for line in path.read_text().splitlines() if not line.startswith("#")]


@pytest.mark.parametrize("algo", registry.baselines())
def test_players_have_probabilities_and_leave_the_run_alone(algo: str) -> None:
    model = _built(algo, "MinAtar/Breakout-v1", **({"buffer_size": 100} if "dqn" in algo else {}))
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


def test_small_boards_of_any_size() -> None:
    from gymnasium import spaces

    space = spaces.Box(0, 1, (7, 9, 2), dtype=np.uint8)
    assert SmallImage(space)(torch.rand(3, 7, 9, 2)).shape == (3, 16 * 5 * 7)


def test_boards_that_sb3_turns_are_read_as_they_come() -> None:
    """uint8 in 0..255 is an image to SB3, which puts its channels first."""
    env = FakeImageEnv(screen_height=12, screen_width=10, n_channels=4, discrete=True)
    model: Any = build("dqn", "CnnPolicy", env, {"buffer_size": 50, "learning_starts": 10}, 100, seed=0, device="cpu")
    convolution = model.q_net.features_extractor.layers[0]
    seen: list[torch.Size] = []
    convolution.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].shape))
    model.learn(20)
    assert convolution.in_channels == 4
    assert {shape[1:] for shape in seen} == {torch.Size((4, 12, 10))}


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


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("ppo --batch-size 1", "ppo cannot be built with these settings.*batch_size"),
        ("ppo --n-steps 0", "n_steps=0: it must be a whole number of at least 1"),
        ("ppo --clip-range abc", "clip_range='abc': it must be a positive number or a schedule"),
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


@pytest.mark.parametrize("algo", ["ac-mproj", "natgrad", "m-dqn", "ppo"])
def test_a_trusted_zip_of_any_algorithm_is_evaluated(
    algo: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "model.zip"
    ALGORITHMS[algo].load()("MlpPolicy", make_envs("CartPole-v1", 1), policy_kwargs={"net_arch": [8]}).save(path)
    assert main(["eval", str(path), "--env", "CartPole-v1", "--episodes", "1"]) == 1
    assert "--trust" in capsys.readouterr().err
    assert main(["eval", str(path), "--env", "CartPole-v1", "--episodes", "1", "--trust"]) == 0
    assert "greedy" in capsys.readouterr().out


def test_a_folder_of_parameters_is_evaluated_as_its_run_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    short = ["--timesteps", "2048", "--eval-every", "2048", "--eval-episodes", "1", "--out", str(run)]
    assert main(["train", "CartPole-v1", "--algo", "ppo", *short]) == 0
    capsys.readouterr()
    said = set()
    for path in (run, run / "model", run / "best_model"):
        assert main(["eval", str(path), "--episodes", "1"]) == 0
        said.add(capsys.readouterr().out)
    assert len(said) == 1
    assert main(["train", "--resume", str(run), "--timesteps", "1000"]) == 1
    assert "a run can only be extended" in capsys.readouterr().err
