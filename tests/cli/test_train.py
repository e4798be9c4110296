"""``staq train``: presets, overrides, folders, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from staq.cli import main as cli
from staq.cli import presets
from staq.cli.runs import Config, _log_interval, build, configured
from staq.cli.train import overrides
from staq.envs.make import make_envs
from tests.cli.conftest import FAST, train


def test_the_preset_is_printed_with_what_was_overridden(capsys: pytest.CaptureFixture[str]) -> None:
    assert train("run", env="MinAtar/Breakout-v1", steps=200) == 0
    out = capsys.readouterr().out
    assert "preset minatar (Paper, Table 2, MinAtar)" in out
    assert "reward_scale             100.0\n" in out
    assert "memory_size              3\n" in out
    assert "kl_weight                20.0   (default)" in out


def test_one_option_brings_the_preset_of_lambda_returns(capsys: pytest.CaptureFixture[str]) -> None:
    """Trained, evaluated, resumed, plotted; with fewer lines in its log than iterations."""
    words = "train CartPole-v1 --evaluation lambda --out run --threads 1 --eval-episodes 2 --eval-every 8192"
    assert cli.main([*words.split(), "--timesteps", "16384", "--policy-kwargs", "{net_arch=[16]}"]) == 0
    out = capsys.readouterr().out
    assert "preset classic-lambda" in out
    assert "trace_decay              0.95   (default)" in out
    assert Config.load(Path("run")).n_envs == 64
    assert len((Path("run") / "progress.csv").read_text().splitlines()) == 1 + 8
    assert cli.main(["train", "--resume", "run", "--timesteps", "20480"]) == 0
    assert cli.main(["eval", "run", "--episodes", "2"]) == 0
    assert cli.main(["plot", "run"]) == 0


def test_the_log_of_short_iterations_has_a_thousand_lines_at_most() -> None:
    config = configured("CartPole-v1", presets.load("classic-lambda"), timesteps=10_000_000)
    model = build(config, make_envs("CartPole-v1", 64))
    assert _log_interval(config, model) == 10_000_000 // 2048 // 1000


def test_a_run_is_never_overwritten(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (run / "config.json").stat().st_mtime_ns
    assert train("run") == 1
    assert "no run is ever overwritten" in capsys.readouterr().err
    assert (run / "config.json").stat().st_mtime_ns == before


def test_default_folders_are_free_ones(tmp_path: Path) -> None:
    for _ in range(2):
        assert cli.main(["train", "CartPole-v1", "--timesteps", "200", *FAST]) == 0
    assert (tmp_path / "runs/CartPole-v1/staq/5/model").exists()
    assert (tmp_path / "runs/CartPole-v1/staq/5-2/model").exists()


def test_a_baseline_can_have_the_boundary(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--algo", "dqn", "--actions", "boundary", "--n-envs", "1", "--threads", "1", "--eval-episodes", "1"]
    assert cli.main(["train", "Pendulum-v1", "--timesteps", "300", "--out", "dqn", *arguments]) == 0
    assert cli.main(["eval", "dqn", "--episodes", "1"]) == 0
    assert "Pendulum-v1  greedy" in capsys.readouterr().out
    assert cli.main(["train", "Pendulum-v1", "--algo", "dqn", "--out", "no"]) == 1
    assert "use --actions boundary" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--memory-size", "100"], {"memory_size": 100}),
        (["--memory-size=none"], {"memory_size": None}),
        (["--learning-rate", "3e-4", "--behaviour", "sticky"], {"learning_rate": 3e-4, "behaviour": "sticky"}),
        (["--ent-decay-steps", "1e6"], {"ent_decay_steps": 1_000_000}),
        (["--policy-kwargs", "{net_arch=[8]}"], {"policy_kwargs": {"net_arch": [8]}}),
    ],
)
@pytest.mark.parametrize("options_first", [False, True])
def test_overrides(words: list[str], expected: dict[str, Any], options_first: bool) -> None:
    line = [*words, "CartPole-v1"] if options_first else ["CartPole-v1", *words]
    options = cli.build_parser().parse_args(["train", *line])
    assert options.env == "CartPole-v1"
    parsed = overrides(options)
    assert parsed == expected
    assert [type(v) for v in parsed.values()] == [type(v) for v in expected.values()]


def test_the_policy_can_be_overridden() -> None:
    assert train("run", "--policy", "MlpPolicy", env="MinAtar/Breakout-v1", steps=200) == 0
    assert Config.load(Path("run")).policy == "MlpPolicy"


def test_help_says_what_every_hyperparameter_is(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["train", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "discount factor [0.99]" in text
    assert (
        "states per gradient step, of the critics and of an actor "
        "[256: staq and variants; 32: dqn, m-dqn; 64: ppo; 128: trpo; lambda: 128]" in text
    )
    assert "λ: 0 looks one step ahead, 1 to the end of the rollout [lambda: 0.95]" in text
    assert (
        "how many Q-functions the policy consists of; None keeps all (exact mirror descent) [300: staq; None:" in text
    )


def test_a_number_of_steps_is_finite(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["train", "CartPole-v1", "--timesteps", "inf"])
    assert "'inf' is not a positive whole number" in capsys.readouterr().err


def test_a_failed_start_leaves_no_folder(tmp_path: Path) -> None:
    assert train("bad", "--memory-size", "0") == 1
    assert not (tmp_path / "bad").exists()


def test_a_read_only_folder_is_a_clear_error(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied", "somewhere/run")

    monkeypatch.setattr(Path, "mkdir", refuse)
    assert train("somewhere/run") == 1
    assert "Permission denied" in capsys.readouterr().err


@pytest.mark.slow
def test_the_demo_solves_cartpole(capsys: pytest.CaptureFixture[str]) -> None:
    """A broken agent stays below 200 for all of its 60,000 steps."""
    assert cli.main(["train", "CartPole-v1", "--preset", "demo", "--out", "demo"]) == 0
    assert "Greedy return over 20 fresh episodes after 60000 steps: 500.0 (worst 500.0)" in capsys.readouterr().out
