"""Experiments as data, their runs, and running them on this machine: what is lost by a kill, and what by a failure."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from staq.baselines import sb3_policy
from staq.cli import main as cli
from staq.cli.presets import check_hyperparameters
from staq.cli.rollouts import Evaluation, write_rows
from staq.cli.runs import Config
from staq.experiments import backends, random_policy, status, timing, worker
from staq.experiments import plans as experiments
from staq.experiments.plans import Experiment, Variant
from staq.experiments.record import ERROR, FINISHED, OUTPUT, Planned, found_runs, plan, range_of_seeds
from staq.storage import checkpoint
from tests.experiments.conftest import TINY, rows_of, tiny


@pytest.mark.parametrize("name", experiments.names())
def test_every_experiment_can_be_built(name: str, tmp_path: Path) -> None:
    experiment = experiments.load(name)
    for variant in experiment.variants:
        check_hyperparameters(variant.hyperparameters, variant.algo)
    runs = plan(experiment, tmp_path, seeds=1)
    assert len(runs) == len(experiment.environments) * len(experiment.variants)
    assert len({run.folder for run in runs}) == len(runs)
    assert {run.config.timesteps for run in runs} == {1800 if experiment.timed else experiment.timesteps}


def test_the_budget_cuts_steps_and_nothing_else(tmp_path: Path) -> None:
    experiment = experiments.load("memory")
    (whole, *_), (cut, *_) = plan(experiment, tmp_path), plan(experiment, tmp_path, budget=0.01)
    assert (whole.config.timesteps, cut.config.timesteps) == (5_000_000, 50_000)
    assert whole.config.hyperparameters == cut.config.hyperparameters
    assert (whole.config.eval_every, cut.config.eval_every) == (100_000, 5000)


def test_a_part_of_an_experiment(tmp_path: Path) -> None:
    experiment = experiments.load("memory")
    runs = plan(experiment, tmp_path, seeds=2, envs=["MinAtar/Freeway-v1"], variants=["StaQ M=50", "natgrad"])
    assert [(r.variant, r.config.seed) for r in runs] == [
        ("StaQ M=50", 0),
        ("NatGrad", 0),
        ("StaQ M=50", 1),
        ("NatGrad", 1),
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"envs": ["Pong"]}, "'Pong' is no environment of memory"),
        ({"variants": ["M=7"]}, "'M=7' is no algorithm of memory.*StaQ M=50"),
        ({"budget": 2.0}, "--budget 2.0"),
        ({"budget": 0.0}, "--budget 0.0"),
    ],
)
def test_what_is_not_there_is_named(arguments: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        plan(experiments.load("memory"), tmp_path, **arguments)


def test_runs_are_finished_once_and_states_are_told_by_files(tmp_path: Path) -> None:
    runs = tiny(tmp_path)
    assert {run.state for run in runs} == {"planned"}
    left = backends.prepare(runs, "staq experiment run")
    assert {run.state for run in runs} == {"planned"}, "a configuration alone is no beginning"
    (runs[0].folder / OUTPUT).touch()
    assert runs[0].state == "begun"
    backends.local(left, processes=2, report=lambda: None)
    assert {run.state for run in runs} == {"finished"}
    assert all(len(rows) == 4 for rows in rows_of(runs))
    assert backends.prepare(runs, "again") == []
    before = [(run.folder / "evaluations.csv").stat().st_mtime_ns for run in runs]
    backends.local(runs, processes=2, report=lambda: None)  # even when asked to
    assert before == [(run.folder / "evaluations.csv").stat().st_mtime_ns for run in runs]
    table = status.table(runs)
    assert len(table) == 3
    assert "2/2" in table[1]
    assert "100%" in table[1]


@pytest.mark.parametrize("algo", ["staq", "ppo"])
def test_a_run_killed_just_before_its_end_ends(algo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (run,) = plan(experiments.load("deep-rl"), tmp_path, 0.001, 1, ["CartPole-v1"], [algo], eval_episodes=1)
    backends.prepare([run], "")
    monkeypatch.setattr(sys, "argv", ["worker", str(run.folder)])
    with monkeypatch.context() as killed:
        killed.setattr(worker, "replace_text", lambda path, text: sys.exit(9))
        with pytest.raises(SystemExit):
            worker.main()
    rows = rows_of([run])
    assert rows[0]
    assert run.state == "begun"
    assert worker.main() == 0
    assert run.state == "finished"
    assert rows_of([run]) == rows
    assert not (run.folder / "checkpoints").exists(), "nothing will resume it"


def test_another_configuration_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    backends.prepare(tiny(tmp_path), "")
    with pytest.raises(ValueError, match="another configuration.*name another --out"):
        backends.prepare(tiny(tmp_path, steps=1000), "")


def test_a_failed_run_is_listed_and_stops_no_other(tmp_path: Path) -> None:
    good, bad = tiny(tmp_path, seeds=1), tiny(tmp_path, seeds=1, env="Nowhere-v0")
    runs = [*bad, *good]
    backends.local(backends.prepare(runs, ""), processes=2, report=lambda: None)
    assert [run.state for run in runs] == ["failed", "failed", "finished", "finished"]
    listed = status.failures(runs)
    assert len(listed) == 2
    assert "Nowhere" in listed[0]
    assert "Traceback" in (bad[0].folder / ERROR).read_text()
    # It is tried again, and what was wrong before is forgotten once it works.
    assert len(backends.prepare(runs, "")) == 2


@pytest.mark.parametrize("full_from", [1, 3])
def test_a_full_disk_is_named_and_loses_nothing(
    full_from: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the first checkpoint, right after an evaluation, and with a later one."""

    def run(folder: Path) -> Planned:
        planned = replace(tiny(folder)[0], config=replace(tiny(folder)[0].config, eval_every=200))
        backends.prepare([planned], "")
        return planned

    def work(planned: Planned) -> int:
        monkeypatch.setattr(sys, "argv", ["worker", str(planned.folder)])
        return worker.main()

    undisturbed, disturbed = run(tmp_path / "undisturbed"), run(tmp_path / "disturbed")
    assert work(undisturbed) == 0
    write = checkpoint.write_atomically

    def full(path: Path, content: dict[str, Any]) -> None:
        if f"state-{full_from:06d}" in path.name:
            raise OSError(28, "No space left on device")
        write(path, content)

    with monkeypatch.context() as disk:
        disk.setattr(checkpoint, "write_atomically", full)
        assert work(disturbed) == 1
    assert "No space left on device" in status.failures([disturbed])[0]
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=3e6))
    assert "Only 3 MB are left" in "".join(status.stopped([disturbed], tmp_path))
    assert work(disturbed) == 0
    assert rows_of([disturbed]) == rows_of([undisturbed])


def test_a_worker_that_dies_without_a_word_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by a crash of an environment's own code; and a disk too full to begin with."""
    crashed, unlucky = tiny(tmp_path, seeds=1)
    backends.prepare([crashed, unlucky], "")
    (tmp_path / "sitecustomize.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    with monkeypatch.context() as broken:
        broken.setenv("PYTHONPATH", str(tmp_path))
        assert backends.local([crashed], processes=1, report=lambda: None) == []
    assert crashed.state == "failed"
    assert "The worker ended by signal SIGSEGV" in status.failures([crashed])[0]
    (unlucky.folder / "output.txt").mkdir()
    (problem,) = backends.local([unlucky], processes=1, report=lambda: None)
    assert "output.txt" in problem


def test_what_was_typed_is_kept(tmp_path: Path) -> None:
    (run, *_) = tiny(tmp_path)
    backends.local(backends.prepare([run], "staq experiment run tiny --seeds 1"), processes=1, report=lambda: None)
    assert '"command": "staq experiment run tiny --seeds 1"' in (run.folder / "config.json").read_text()


def test_a_half_written_line_of_a_log_counts_for_nothing(tmp_path: Path) -> None:
    (run, *_) = tiny(tmp_path)
    backends.prepare([run], "")
    (run.folder / "progress.csv").write_text("time/total_timesteps,x\n200,1\n40.,")
    assert run.steps_done == 200


def test_a_run_ends_with_an_evaluation(tmp_path: Path) -> None:
    for budget in (0.001, 0.0333, 0.075, 0.31, 1.0):
        (run, *_) = plan(experiments.load("deep-rl"), tmp_path, budget=budget)
        assert run.config.timesteps % run.config.eval_every == 0
        assert run.config.timesteps == pytest.approx(5_000_000 * budget, abs=run.config.eval_every)


def test_a_gpu_that_would_lie_idle_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run = ["experiment", "run", "memory", "--backend", "ray", "--out", str(tmp_path), "--dry-run"]
    assert cli.main([*run, "--gpus", "0.5"]) == 1
    assert "--gpus 0.5 would lie idle: add --device cuda" in capsys.readouterr().err
    assert cli.main([*run, "--gpus", "0.5", "--device", "cuda"]) == 0
    with pytest.raises(SystemExit):
        cli.main([*run, "--hours", "-3"])
    assert "'-3' is no number above 0" in capsys.readouterr().err


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_driver_loses_nothing(how: signal.Signals, tmp_path: Path) -> None:
    """In the middle of the first runs. After −9 its workers live on, and the second driver waits for them; SIGTERM ends
    them after their iteration."""
    undisturbed = tiny(tmp_path / "undisturbed", seeds=1, steps=2000)
    backends.local(backends.prepare(undisturbed, ""), processes=2, report=lambda: None)
    script = (
        "import sys; from pathlib import Path; from staq.experiments import backends;"
        "from tests.experiments.conftest import tiny; runs = tiny(Path(sys.argv[1]), seeds=1, steps=2000);"
        "backends.local(backends.prepare(runs, ''), 2, lambda: None)"
    )
    driver = subprocess.Popen([sys.executable, "-c", script, str(tmp_path / "killed")], stderr=subprocess.DEVNULL)
    runs = tiny(tmp_path / "killed", seeds=1, steps=2000)
    deadline = time.monotonic() + 120
    while not all((run.folder / "checkpoints").exists() for run in runs) and time.monotonic() < deadline:
        time.sleep(0.02)
    driver.send_signal(how)
    driver.wait()
    stopped = [run.steps_done for run in runs]
    assert any(run.state != "finished" for run in runs)
    if how == signal.SIGTERM:
        time.sleep(1)
        assert [run.steps_done for run in runs] == stopped, "nobody is at work any more"
    backends.local(backends.prepare(runs, ""), processes=2, report=lambda: None)
    assert {run.state for run in runs} == {"finished"}
    assert rows_of(runs) == rows_of(undisturbed)


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    variants = [Variant("StaQ M=1", "staq", TINY | {"memory_size": 1})]
    experiment = Experiment("tiny", "t", "Fig. 0", ["CartPole-v1"], 10_000, 2, variants, 10_000, 2)
    monkeypatch.setattr(experiments, "load", lambda name: experiment)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["experiment", "run", "tiny", "--budget", "0.5", "--seeds", "1", "--dry-run"]) == 0
    assert "1 of 1 runs to go, 5,000 environment steps" in capsys.readouterr().out
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


def test_what_is_timed_is_deep_in_a_run(tmp_path: Path) -> None:
    (run, *_) = [run for run in tiny(tmp_path) if run.config.hyperparameters["memory_size"] == 2]
    found = timing.of_run(run.config, steps=20)
    assert set(found["ms"]) == set(timing.PHASES)
    assert found["total_ms"] == sum(found["ms"].values()) > 0


def lay(run: Planned, last: float, seconds: float = 0.0) -> None:
    """A finished run's folder."""
    run.folder.mkdir(parents=True)
    run.config.save(run.folder, "")
    timesteps = run.config.timesteps
    rows = [Evaluation(timesteps, mode, 1, last, 0.0, last, 1.0, seconds) for mode in ("greedy", "stochastic")]
    write_rows(run.folder, rows)
    (run.folder / FINISHED).touch()


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


@pytest.mark.parametrize(("text", "seeds"), [("3", [0, 1, 2]), ("4-6", [4, 5, 6]), ("7-7", [7])])
def test_ranges_of_seeds(text: str, seeds: list[int]) -> None:
    assert list(range_of_seeds(text)) == seeds


@pytest.mark.parametrize("text", ["0", "5-3", "x", "-1", "1,2"])
def test_no_seeds_are_named(text: str) -> None:
    with pytest.raises(ValueError, match=f"--seeds {text}"):
        range_of_seeds(text)


def test_the_same_environment_twice_is_one(tmp_path: Path) -> None:
    runs = plan(experiments.load("mujoco"), tmp_path, seeds=1, envs=["Ant-v4", "Ant-v4"], variants=["factored"])
    assert len(runs) == 1


def test_the_time_that_is_left(tmp_path: Path) -> None:
    """Two seconds per thousand steps where that was measured, the first guess elsewhere; none is faster than alone."""
    runs = plan(experiments.load("memory"), tmp_path, budget=0.002, seeds=2, envs=["MinAtar/Breakout-v1"])
    known, *others = [run for run in runs if run.variant == "StaQ M=1"]
    lay(known, 1.0, seconds=20.0)
    assert status.seconds_left(others, 1) == pytest.approx(10_000 * status.first_guess(others[0]))
    assert status.seconds_left([known, *others], 1) == pytest.approx(20.0)
    assert status.seconds_left([known, *others], 4) == pytest.approx(20.0)
    assert status.seconds_left([known, *others, *others], 2) == pytest.approx(20.0)
    assert status.seconds_left([known, *others, *others], 1) == pytest.approx(40.0)
    timed = plan(experiments.load("runtime"), tmp_path, seeds=1)
    assert status.seconds_left(timed, 1) == len(timed) * status.SECONDS_OF_A_TIMING


def test_a_baseline_that_could_not_be_saved_is_not_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (run,) = plan(experiments.load("deep-rl"), tmp_path, 0.001, 1, ["CartPole-v1"], ["ppo"], eval_episodes=1)
    run = replace(run, config=replace(run.config, timesteps=2048))
    backends.prepare([run], "")
    write = sb3_policy.write_atomically

    def full(path: Path, content: dict[str, Any]) -> None:
        if path.name == sb3_policy.PARAMETERS:
            raise OSError(28, "No space left on device")
        write(path, content)

    monkeypatch.setattr(sys, "argv", ["worker", str(run.folder)])
    with monkeypatch.context() as disk:
        disk.setattr(sb3_policy, "write_atomically", full)
        assert worker.main() == 1
    assert run.state == "failed"
    assert worker.main() == 0
    assert run.state == "finished"


def test_a_machine_without_a_gpu_can_report_on_one_with(tmp_path: Path) -> None:
    (run,) = plan(experiments.load("memory"), tmp_path, 0.001, 1, ["MinAtar/Freeway-v1"], ["natgrad"], device="cuda")
    lay(run, 1.0)
    (same,) = plan(experiments.load("memory"), tmp_path, 0.001, 1, ["MinAtar/Freeway-v1"], ["natgrad"])
    assert not same.of_another_kind
    (other,) = plan(experiments.load("memory"), tmp_path, 0.002, 1, ["MinAtar/Freeway-v1"], ["natgrad"])
    assert other.of_another_kind


def test_a_seed_of_any_size_is_found(tmp_path: Path) -> None:
    only = {"envs": ["MinAtar/Freeway-v1"], "variants": ["natgrad"]}
    (run,) = plan(experiments.load("memory"), tmp_path, 0.001, "20240101-20240101", **only)
    lay(run, 1.0)
    found = found_runs(experiments.load("memory"), tmp_path, budget=0.001, seeds=1, **only)
    assert [(one.config.seed, one.state) for one in found] == [(0, "planned"), (20240101, "finished")]


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM, signal.SIGSEGV])
def test_a_worker_that_is_stopped_before_it_listens_has_not_failed(
    signal_number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a worker that crashes has."""
    (run,) = tiny(tmp_path, seeds=1)[:1]
    backends.prepare([run], "")
    stub = tmp_path / "stub.sh"
    stub.write_text(f"#!/bin/sh\nkill -{signal_number.value} $$\n")
    stub.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(stub))
    assert worker.run_in_process(str(run.folder), 1, timed=False) == -signal_number
    assert run.state == ("failed" if signal_number == signal.SIGSEGV else "begun")


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


def test_names_are_checked(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["experiment", "show", "memmory"]) == 1
    assert "Did you mean 'memory'" in capsys.readouterr().err
    assert cli.main(["experiment", "list"]) == 0
    assert "deep-rl" in capsys.readouterr().out
    assert cli.main(["experiment", "show", "epsilon"]) == 0
    assert "epsilon=0.01" in capsys.readouterr().out


def test_times_in_words() -> None:
    assert [status.in_words(s) for s in (40, 720, 12_600, 800_000)] == ["40 s", "12 min", "3.5 h", "9 days"]


def test_luck_grows_with_held_actions_and_is_counted_once(tmp_path: Path) -> None:
    """A uniform policy hardly ever leaves MountainCar's valley in 200 steps; one that holds its actions does."""
    said: list[str] = []
    assert (
        random_policy.seconds_left([20, 40], 20_000, tmp_path)
        == 1.5 * random_policy.seconds_left([20], 20_000, tmp_path)
        > 0
    )
    assert random_policy.seconds_left([], 20_000, tmp_path) == 0
    random_policy.count("MountainCar-v0", [20], 20_000, tmp_path, said.append)
    counts = random_policy.read(tmp_path)
    assert list(counts) == ["none", "20"]
    assert counts["none"][1] == 0
    assert counts["20"][1] > 0
    assert counts["20"][2] >= 100
    assert random_policy.seconds_left([20], 20_000, tmp_path) == 0
    random_policy.count("MountainCar-v0", [20], 20_000, tmp_path, said.append)
    assert len(said) == 2
