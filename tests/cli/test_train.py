"""``staq train``: presets, overrides, folders, and what it refuses."""

from __future__ import annotations

import importlib
import sys
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from staq.cli import main as cli
from staq.cli import presets
from staq.cli.rollouts import read_rows
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
        cli.main(["train", "--help-all"])
    text = " ".join(capsys.readouterr().out.split())
    for group in ("every algorithm", "--evaluation replay", "--evaluation lambda", "natgrad", "baselines"):
        assert f"hyperparameters of {group}:" in text
    assert "discount factor [0.99]" in text
    assert (
        "states per gradient step, of the critics and of an actor "
        "[256: staq and variants; 32: dqn, m-dqn; 128: pqn, trpo; 64: ppo; lambda: 128]" in text
    )
    assert "λ: 0 looks one step ahead, 1 to the end of the rollout [0.65: pqn; lambda: 0.95]" in text
    assert (
        "how many Q-functions the policy consists of; None keeps all (exact mirror descent) [300: staq; None:" in text
    )


def test_help_fits_the_eye(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        cli.main(["train", "--help"])
    text = capsys.readouterr().out
    assert len(text.splitlines()) < 55
    assert text.index("--timesteps") < text.index("--evaluation") < text.index("--memory-size")
    assert "--kl-weight" not in text
    assert "--help-all" in text


def test_errors_come_before_the_settings(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert train("run", "--batch-size", "600") == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "staq: buffer_size=500 is less than batch_size=600: raise the one or lower the other.\n"
    assert not (tmp_path / "run").exists()


def test_a_second_start_into_the_same_folder_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have found it free, and one was faster."""
    monkeypatch.setattr("staq.cli.runs._weights_and_biases", lambda *_: Path("run").mkdir() or nullcontext())
    assert train("run") == 1
    assert "run exists, and no run is ever overwritten: name another --out" in capsys.readouterr().err


def test_a_short_run_is_evaluated_every_iteration() -> None:
    assert cli.main(["train", "CartPole-v1", "--timesteps", "800", "--out", "run", *FAST]) == 0
    assert [row.timesteps for row in read_rows(Path("run")) if row.mode == "greedy"] == [200, 400, 600, 800]


def test_the_end_is_that_of_an_iteration(capsys: pytest.CaptureFixture[str]) -> None:
    assert train("run", steps=450) == 0
    assert "after 600 steps" in capsys.readouterr().out


def test_divergence_names_the_last_good_checkpoint(capsys: pytest.CaptureFixture[str]) -> None:
    assert train("run", "--learning-rate", "1e9", "--policy-kwargs", "{net_arch=[64,64]}") == 1
    err = capsys.readouterr().err
    assert err.splitlines()[-1].startswith("staq: Training diverged in iteration 1")  # below the progress bar
    assert "There is no checkpoint yet in run/checkpoints." in err


def test_the_same_warning_is_shown_once(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("staq.cli.info._machine", lambda: [warnings.warn(f"{i // 2}", stacklevel=2) for i in range(4)])
    with warnings.catch_warnings():
        warnings.simplefilter("always")  # as it is where other packages make Python forget what it has shown
        assert cli.main(["info"]) == 0
    assert capsys.readouterr().err == "staq: 0\nstaq: 1\n"


MODULE = """
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

gymnasium.register("Mine-v0", entry_point=CartPoleEnv, max_episode_steps=20)
"""


def test_an_environment_of_a_module_in_this_folder(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ("", str(Path.cwd()))])
    monkeypatch.delitem(sys.modules, "my_games", raising=False)
    assert train("run", env="my_games:Mine-v0", steps=200) == 1
    assert "There is no module 'my_games' of my_games:Mine-v0, neither installed nor in" in capsys.readouterr().err
    Path("my_games.py").write_text(MODULE)
    importlib.invalidate_caches()
    assert train("run", env="my_games:Mine-v0", steps=200) == 0


def test_an_error_of_the_users_own_code_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line would not say where in the environment it was."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("unfinished.py").write_text(
        "import gymnasium\nfrom gymnasium.envs.classic_control import CartPoleEnv\n\n"
        "class Mine(CartPoleEnv):\n    def step(self, action):\n        return 1 + None\n\n"
        "gymnasium.register('Unfinished-v0', entry_point=Mine, max_episode_steps=20)\n"
    )
    importlib.invalidate_caches()
    with pytest.raises(TypeError, match="unsupported operand"):
        train("run", env="unfinished:Unfinished-v0")


def test_what_is_no_toml_is_said_to_be_none(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["train", "CartPole-v1", "--policy-kwargs", '{"net_arch": [16]}'])
    assert '{"net_arch": [16]} is not TOML, as {net_arch = [64, 64]} is' in capsys.readouterr().err


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
    """A broken agent stays below 200 all along."""
    assert cli.main(["train", "CartPole-v1", "--preset", "demo", "--out", "demo"]) == 0
    assert "Greedy return over 20 fresh episodes after 251904 steps: 500.0 (worst 500.0)" in capsys.readouterr().out
