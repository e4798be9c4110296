"""``staq experiment``: run, interrupted, resumed, reported and refused."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from staq.cli import main as cli
from staq.cli.runs import Config
from staq.experiments import backends, status, timing, worker
from staq.experiments import plans as experiments
from staq.experiments.plans import Experiment, Variant
from staq.experiments.record import plan
from tests.experiments.conftest import TINY, lay


def test_a_gpu_that_would_lie_idle_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run = ["experiment", "run", "memory", "--backend", "ray", "--out", str(tmp_path), "--dry-run"]
    assert cli.main([*run, "--gpus", "0.5"]) == 1
    assert "--gpus 0.5 would lie idle: add --device cuda" in capsys.readouterr().err
    assert cli.main([*run, "--gpus", "0.5", "--device", "cuda"]) == 0
    with pytest.raises(SystemExit):
        cli.main([*run, "--hours", "-3"])
    assert "'-3' is no number above 0" in capsys.readouterr().err


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    variants = [Variant("StaQ M=1", "staq", TINY | {"memory_size": 1})]
    experiment = Experiment("tiny", "t", "Fig. 0", ["CartPole-v1"], 10_000, 2, variants, 10_000, 2)
    monkeypatch.setattr(experiments, "load", lambda name: experiment)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["experiment", "run", "tiny", "--budget", "0.5", "--seeds", "1", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "1 of 1 runs to go, 5,000 environment steps" in out
    assert re.search("with (one process|[0-9]+ processes at once) →", out)
    assert re.search(r"planned +\S+ +\S.* seed 0 ", out), "each run is listed"
    assert not (tmp_path / "experiments").exists()
    assert cli.main(["experiment", "status", "tiny"]) == 1
    assert "holds no experiment" in capsys.readouterr().err
    arguments = ["--budget", "0.5", "--seeds", "1", "--eval-episodes", "1"]
    assert cli.main(["experiment", "run", "tiny", *arguments]) == 0
    assert "1/1" in capsys.readouterr().out
    assert cli.main(["experiment", "status", "tiny"]) == 0  # knows what was asked for
    assert "1/1" in capsys.readouterr().out
    assert cli.main(["experiment", "report", "tiny"]) == 0
    page = (tmp_path / "experiments/tiny/report/index.html").read_text()
    assert "data:image/png;base64," in page
    assert "http" not in page.replace("http-equiv", "")
    assert cli.main(["experiment", "run", "tiny", "--out", "experiments/tiny"]) == 0
    out = capsys.readouterr().out
    assert "0 of 1 runs to go" in out
    assert "budget 0.5, seeds 1, eval_episodes 1" in out, "what is not said is as it was"


def test_an_interrupted_experiment_says_how_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def press_ctrl_c(*arguments: Any) -> int:
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGINT)
        return 2

    monkeypatch.setattr(backends, "run_in_process", press_ctrl_c)
    command = "experiment run memory --budget 0.001 --seeds 1 --algos NatGrad --envs MinAtar/Breakout-v1"
    assert cli.main([*command.split(), "--out", str(tmp_path)]) == 130
    out, err = capsys.readouterr()
    assert "Stopping when every run has ended its iteration" in out
    assert f"To go on: staq experiment run memory --out {tmp_path}" in out
    assert "what was saved is intact" in err


def test_a_timing_is_an_experiment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the runtime experiment: everything but the stopwatch."""
    monkeypatch.chdir(tmp_path)
    asked = []

    def timed(folder: str, threads: int, timed: bool) -> int:
        asked.append(threads)
        monkeypatch.setattr(sys, "argv", ["worker", folder, *["timed"] * timed])
        return worker.main()

    def of_run(config: Config) -> dict[str, Any]:
        ms = {} if config.algo == "dqn" else {"acting": 1.0 + config.seed / 100, "gradient": 2.0}
        if config.algo == "ac-nokl" and len(asked) < 10:
            raise RuntimeError("a crash")
        return {"total_ms": sum(ms.values()) or 2.0, "ms": ms, "peak_gb": 1.0, "machine": "this one"}

    monkeypatch.setattr(backends, "run_in_process", timed)
    monkeypatch.setattr(timing, "of_run", of_run)
    assert cli.main("experiment run runtime --budget 0.1".split()) == 1
    assert "Leave it out" in capsys.readouterr().err
    run = [*"experiment run runtime --seeds 2 --algos".split(), "StaQ M=1", "ac-nokl", "dqn"]
    assert cli.main(run) == 1
    said = capsys.readouterr()
    assert "RuntimeError: a crash" in said.out
    assert "2 runs failed" in said.err
    assert set(asked) == {os.cpu_count()}
    asked += [0] * 10
    assert cli.main(run) == 0, "what failed is measured again"
    assert cli.main("experiment report runtime".split()) == 0
    page = Path("experiments/runtime/report/index.html").read_text()
    assert "13.9" in page
    assert "not timed in two rounds yet" in page, "M = 300 was left out"
    assert Path("experiments/runtime/report/phases.svg").exists()


def test_folders_of_several_machines_are_one_experiment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copied together, with or without what was asked for on either."""
    monkeypatch.chdir(tmp_path)
    out, memory = tmp_path / "experiments" / "memory", experiments.load("memory")
    asked: dict[str, Any] = {"budget": 0.001, "eval_episodes": 7}
    here = plan(memory, out, seeds="0-1", envs=["MinAtar/Freeway-v1"], variants=["StaQ M=1"], **asked)
    there = plan(memory, out, seeds="5-5", envs=["MinAtar/Breakout-v1"], variants=["natgrad"], **asked)
    for run in [*here, *there]:
        lay(run, 1.0)
    assert cli.main("experiment status memory".split()) == 0
    table = capsys.readouterr().out
    assert re.search(r"Freeway-v1 +StaQ M=1 +2/", table)
    assert re.search(r"Breakout-v1 +NatGrad +1/", table)
    run = ["experiment", "run", "memory", "--seeds", "2", "--envs", "MinAtar/Freeway-v1", "--algos", "StaQ M=1"]
    assert cli.main(run) == 0
    assert "0 of 2 runs to go" in capsys.readouterr().out
    assert cli.main("experiment report memory".split()) == 0
    page = (out / "report" / "index.html").read_text()
    assert "MinAtar/Breakout-v1" in page
    assert "3 of 3 runs are finished" in page


def test_a_damaged_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run,) = plan(experiments.load("memory"), tmp_path, 0.001, 1, ["MinAtar/Freeway-v1"], ["natgrad"])
    lay(run, 1.0)
    rows = run.folder / "evaluations.csv"
    rows.write_text(rows.read_text()[:-30])
    command = ["experiment", "report", "memory", "--out", str(tmp_path)]
    assert cli.main(command) == 1
    assert f"{rows} is damaged" in capsys.readouterr().err
    (tmp_path / "experiment.json").write_text('{"exp')
    assert cli.main(command) == 1
    assert f"{tmp_path / 'experiment.json'} is damaged" in capsys.readouterr().err


def test_rows_of_another_budget_are_refused_before_an_estimate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run,) = plan(experiments.load("memory"), tmp_path, 0.001, 1, ["MinAtar/Freeway-v1"], ["natgrad"])
    lay(run, 1.0)
    chosen = "--seeds 1 --envs MinAtar/Freeway-v1 --algos natgrad --budget 0.002 --dry-run".split()
    assert cli.main(["experiment", "run", "memory", *chosen, "--out", str(tmp_path)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert f"{run.folder} was begun with another configuration" in err
    (other,) = plan(experiments.load("memory"), tmp_path, 0.002, 1, ["MinAtar/Freeway-v1"], ["natgrad"])
    assert len(status.table([other])) == 1, "and does not count"
