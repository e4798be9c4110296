"""From an experiment to its runs: which there are, where they lie, and how far each of them is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from staq.experiments import backends, status
from staq.experiments import plans as experiments
from staq.experiments.record import OUTPUT, found_runs, plan, range_of_seeds
from tests.experiments.conftest import lay, rows_of, tiny


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


def test_a_machine_without_a_gpu_can_report_on_one_with(tmp_path: Path) -> None:
    (run,) = plan(experiments.load("memory"), tmp_path, 0.001, 1, ["MinAtar/Freeway-v1"], ["natgrad"], device="cuda")
    lay(run, 1.0)
    (same,) = plan(experiments.load("memory"), tmp_path, 0.001, 1, ["MinAtar/Freeway-v1"], ["natgrad"])
    assert not same.config_differs
    (other,) = plan(experiments.load("memory"), tmp_path, 0.002, 1, ["MinAtar/Freeway-v1"], ["natgrad"])
    assert other.config_differs


def test_a_seed_of_any_size_is_found(tmp_path: Path) -> None:
    only = {"envs": ["MinAtar/Freeway-v1"], "variants": ["natgrad"]}
    (run,) = plan(experiments.load("memory"), tmp_path, 0.001, "20240101-20240101", **only)
    lay(run, 1.0)
    found = found_runs(experiments.load("memory"), tmp_path, budget=0.001, seeds=1, **only)
    assert [(one.config.seed, one.state) for one in found] == [(0, "planned"), (20240101, "finished")]
