"""What a run leaves behind, and that a resumed one leaves the same."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from staq import registry
from staq.cli import main as cli
from staq.cli import runs
from staq.cli.main import main
from staq.cli.rollouts import read_rows, write_rows
from staq.cli.runs import Config
from staq.storage.atomic_files import locked, read
from tests.cli.conftest import train


def table(path: Path) -> list[dict[str, str]]:
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    return list(csv.DictReader(lines))


def steady(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    """Without what depends on the clock."""
    clocks = ("time/fps", "time/time_elapsed", "t", "seconds")
    return [{k: v for k, v in row.items() if k not in clocks and not k.endswith("_seconds")} for row in rows]


def test_a_run_leaves_everything_behind(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = {path.name for path in run.iterdir()}
    files = "config.json progress.csv monitor.csv evaluations.csv evaluations.npz learning_curve.png"
    assert names == {*files.split(), "checkpoints", "model", "best_model", "tensorboard"}
    config = json.loads((run / "config.json").read_text())
    assert config["hyperparameters"]["memory_size"] == 3
    assert config["made_by"]["torch"]
    assert config["command"].startswith("staq train CartPole-v1 --timesteps 1000 --eval-every 400 --out run")
    rows = read_rows(run)
    assert [(row.timesteps, row.mode) for row in rows[:2]] == [(400, "greedy"), (400, "stochastic")]
    assert [row.timesteps for row in rows] == [400, 400, 800, 800]
    with np.load(run / "evaluations.npz") as saved:
        assert saved["timesteps"].tolist() == [400, 800]
        assert saved["results"].shape == (2, 2)
        assert saved["results"][0].mean() == pytest.approx(rows[0].mean)
    progress = table(run / "progress.csv")
    assert [int(row["time/total_timesteps"]) for row in progress] == [200, 400, 600, 800, 1000]
    assert any((run / "tensorboard").iterdir())
    assert len(table(run / "monitor.csv")) > 10


@pytest.mark.filterwarnings("default")
def test_junk_in_side_files_does_not_stop_a_resume(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is set aside, and the best policy stays the best although SB3's file of it is gone."""
    (run / "evaluations.npz").write_text("junk")
    (run / "monitor.csv").write_bytes(b"\xff\x00junk")
    lines = (run / "progress.csv").read_text().splitlines()
    (run / "progress.csv").write_text("\n".join([*lines[:2], "ju,nk", *lines[2:]]) + "\n")
    rows, best = read_rows(run), (run / "best_model" / "policy.safetensors").read_bytes()
    write_rows(run, [replace(row, mean=1000.0) for row in rows])
    assert cli.main(["train", "--resume", "run", "--timesteps", "1600"]) == 0
    said = capsys.readouterr().err
    assert all(f"set aside as {name}.damaged" in said for name in ("evaluations.npz", "monitor.csv"))
    assert "1 lines are damaged and were dropped" in said
    assert (run / "evaluations.npz.damaged").read_text() == "junk"
    assert [int(row["time/total_timesteps"]) for row in table(run / "progress.csv")] == list(range(200, 1601, 200))
    assert [row.timesteps for row in read_rows(run)][::2] == [400, 800, 1200, 1600]
    assert (run / "best_model" / "policy.safetensors").read_bytes() == best
    (run / "progress.csv").write_bytes(b"\x00\xff")
    assert cli.main(["train", "--resume", "run", "--timesteps", "1800"]) == 0
    assert "set aside as progress.csv.damaged" in capsys.readouterr().err
    (run / "evaluations.csv").write_bytes(b"\x00\xff")
    assert cli.main(["train", "--resume", "run", "--timesteps", "2000"]) == 0
    assert "set aside as evaluations.csv.damaged" in capsys.readouterr().err
    assert [row.timesteps for row in read_rows(run)][::2] == [1800, 2000]  # at the checkpoint it is evaluated again


@pytest.mark.parametrize(("cut_after", "number"), [(200, signal.SIGINT), (600, signal.SIGTERM)])
def test_a_resumed_run_has_the_same_files(
    run: Path, tmp_path: Path, cut_after: int, number: int, monkeypatch: Any
) -> None:
    """Interrupted by a signal in the middle of an iteration, resumed by the command line."""
    step = gymnasium.make("CartPole-v1").unwrapped.__class__.step
    calls = 0

    def interrupting(self: Any, action: Any) -> Any:
        nonlocal calls
        calls += self.spec.id == "CartPole-v1"
        if calls == cut_after + 50:
            os.kill(os.getpid(), number)
        return step(self, action)

    monkeypatch.setattr("gymnasium.envs.classic_control.CartPoleEnv.step", interrupting)
    assert train("other") == 128 + number
    assert not (tmp_path / "other" / "model").exists()
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert cli.main(["train", "--resume", "other"]) == 0
    other = tmp_path / "other"
    for name in ("progress.csv", "monitor.csv", "evaluations.csv"):
        assert steady(table(other / name)) == steady(table(run / name)), name
    weights = "model/policy.safetensors"
    assert (other / weights).read_bytes() == (run / weights).read_bytes()


@pytest.mark.parametrize("at", [200, 400, 800])
def test_rows_logged_after_the_last_checkpoint_are_not_doubled(run: Path, tmp_path: Path, at: int) -> None:
    """A kill between an evaluation and its checkpoint: the files say more than the checkpoint knows."""
    assert train("killed", steps=at) == 0  # its last checkpoint is before the first evaluation, or at one
    for name in ("progress.csv", "monitor.csv", "evaluations.csv", "evaluations.npz"):
        shutil.copy(run / name, Path("killed") / name)
    assert cli.main(["train", "--resume", "killed", "--timesteps", "1000"]) == 0
    for name in ("progress.csv", "monitor.csv", "evaluations.csv"):
        assert steady(table(tmp_path / "killed" / name)) == steady(table(run / name)), name


def test_a_run_can_be_extended_and_nothing_else_changed(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "--resume", "run", "--seed", "9", "--memory-size", "4"]) == 1
    assert "leave out seed, memory_size" in capsys.readouterr().err
    assert cli.main(["train", "--resume", "run", "--timesteps", "1400"]) == 0
    assert Config.load(run).timesteps == 1400
    assert train("longer", steps=1400) == 0
    assert steady(table(run / "progress.csv")) == steady(table(Path("longer/progress.csv")))


def test_a_run_killed_in_its_first_iteration_begins_again(run: Path) -> None:
    Path("killed").mkdir()
    shutil.copy("run/config.json", "killed/config.json")
    Path("killed/monitor.csv").write_text("#{}\nr,l,t\n1,2,3\n")
    assert cli.main(["train", "--resume", "killed"]) == 0
    for name in ("progress.csv", "monitor.csv", "evaluations.csv"):
        assert steady(table(Path("killed") / name)) == steady(table(run / name)), name


def test_a_kill_right_after_resuming_keeps_the_log(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (run / "progress.csv").read_text()

    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("staq.loop.PolicyMirrorDescent.learn", killed)
    assert cli.main(["train", "--resume", "run", "--timesteps", "1400"]) == 130
    assert (run / "progress.csv").read_text() == before


def test_a_run_is_trained_by_one_process_at_a_time(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (run / "progress.csv").read_text()
    with locked(run / "checkpoints" / ".lock", wait=False):
        assert cli.main(["train", "--resume", "run", "--timesteps", "1400"]) == 1
    assert "Another process is at work with run" in capsys.readouterr().err
    assert (run / "progress.csv").read_text() == before
    assert cli.main(["train", "--resume", "run", "--timesteps", "1400"]) == 0


@pytest.mark.parametrize("git", ["missing", "of another project"])
def test_a_commit_is_recorded_where_it_is_ours(git: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if git == "missing":
        monkeypatch.setenv("PATH", str(tmp_path))
    else:
        someone = ["-c", "user.name=someone", "-c", "user.email=someone@example.org"]
        subprocess.run(["git", "init", "-q", "."], check=True)
        subprocess.run(["git", *someone, "commit", "-q", "--allow-empty", "-m", "theirs"], check=True)
        monkeypatch.setattr(runs, "__file__", str(tmp_path / "venv" / "runs.py"))
        (tmp_path / "venv").mkdir()
    assert runs.provenance()["commit"] is None
    assert train("run") == 0


def test_a_damaged_configuration_is_named(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "config.json").write_text('{"env": "CartPole-v1"}')
    assert cli.main(["train", "--resume", "run"]) == 1
    assert "not the configuration of a run" in capsys.readouterr().err


def test_config_round_trips(run: Path) -> None:
    config = Config.load(run)
    assert config.env == "CartPole-v1"
    assert config.hyperparameters["policy_kwargs"] == {"net_arch": [16]}


def test_weights_and_biases_is_an_extra(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert train("run", "--wandb", "project") == 1
    assert "pip install 'staq[wandb]'" in capsys.readouterr().err


SMALL_BASELINES: dict[str, list[str]] = {
    "dqn": ["--buffer-size", "200", "--batch-size", "8", "--learning-starts", "20"],
    "m-dqn": ["--buffer-size", "200", "--batch-size", "8", "--learning-starts", "20"],
    "pqn": ["--n-steps", "8", "--n-envs", "4", "--batch-size", "16"],
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
        assert main([*common, "--out", str(tmp_path / "parts")]) == 128 + signal.SIGINT
    assert "Continue with" in capsys.readouterr().out
    assert main(["train", "--resume", str(tmp_path / "parts")]) == 0
    for file in ("evaluations.csv", "monitor.csv"):
        rows = [steady(table(tmp_path / name / file)) for name in ("whole", "parts")]
        assert rows[0] == rows[1], file
        assert len(rows[0]) > 4
    whole, parts = (read(tmp_path / name / "model" / "parameters.safetensors")["policy"] for name in ("whole", "parts"))
    for name, weight in whole.items():
        assert torch.equal(weight, parts[name]), name
    assert main(["eval", str(tmp_path / "parts"), "--episodes", "2"]) == 0
    assert main(["eval", str(tmp_path / "parts"), "--best", "--episodes", "2"]) == 0
    assert main(["watch", str(tmp_path / "parts"), "--out", str(tmp_path / "video.gif")]) == 0
    assert main(["plot", str(tmp_path / "whole"), str(tmp_path / "parts"), "--out", str(tmp_path / "plot.png")]) == 0
    assert "2 seeds" in capsys.readouterr().out


def _stop_at(step: int) -> Any:
    def on_rollout_start(self: Any) -> None:
        self.stopped = signal.SIGINT if self.num_timesteps >= step else 0

    return on_rollout_start


def _ignore(self: Any, value: bool) -> None:
    """``requested`` is decided by the step."""


def test_a_run_of_an_algorithm_that_is_not_registered(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Such as one of a program of the user's: the command alone knows nothing of it."""
    file = run / "config.json"
    file.write_text(file.read_text().replace('"algo": "staq"', '"algo": "average"'))
    capsys.readouterr()
    for words in (["eval"], ["watch"], ["plot"], ["table"], ["condense"], ["info"], ["train", "--resume"]):
        assert main([*words, "run"]) == 1
        assert "run of the algorithm 'average', which is not in staq.registry" in capsys.readouterr().err


def test_a_finished_run_says_so(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And its progress bar begins at its end, not beyond: speeds are not negative."""
    file = run / "config.json"
    file.write_text(file.read_text().replace('"timesteps": 1000', '"timesteps": 990'))
    capsys.readouterr()
    assert main(["train", "--resume", "run"]) == 0
    out, err = capsys.readouterr()
    assert "has had its 990 steps: a larger --timesteps extends it" in out
    assert "-" not in err.rpartition("CartPole-v1:")[2]
