"""Tuning: trials that go on where they were stopped, are pruned, and end with a page and a command that works."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from staq.cli import main as cli
from staq.cli import presets, tune
from staq.cli.rollouts import read_rows
from staq.cli.runs import Config
from staq.search_space import SEARCH_SPACES, Between, OneOf, suggested

optuna = pytest.importorskip("optuna")
pytestmark = pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
SMALL = {"policy_update_interval": OneOf((128, 256)), "learning_rate": Between(1e-4, 1e-2), "batch_size": OneOf((64,))}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SEARCH_SPACES, "lambda", SMALL)
    monkeypatch.setattr(tune, "EPISODES", 1)


def tuned(trials: int, *more: str) -> int:
    return cli.main(["tune", "CartPole-v1", "--trials", str(trials), "--timesteps", "1280", "--out", "tuned", *more])


def test_a_page_after_a_stop(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    tried, begun = tune.tried, list[int]()

    def stopped(trial: Any, *arguments: Any) -> float:
        begun.append(trial.number)
        if len(begun) == 2:
            raise KeyboardInterrupt
        return tried(trial, *arguments)

    monkeypatch.setattr(tune, "tried", stopped)
    assert tuned(3) == 130
    assert tuned(3) == 0
    assert begun == [0, 1, 2, 3]  # the second was cut short
    said = capsys.readouterr().out.splitlines()
    page = Path("tuned/README.md").read_text()
    assert said[-1] in page
    assert page.count("\n| ") == 5  # a head, a line, three trials
    for picture in ("history.png", "importance.png"):
        assert (tmp_path / "tuned" / picture).stat().st_size > 1000
        assert picture in page
    seeds = [Config.load(Path("tuned/trials") / str(n)).seed for n in (0, 2, 3)]
    assert seeds == [100, 102, 103]
    words = shlex.split(said[-1])
    assert cli.main([*words[1:], "--out", "best", "--eval-episodes", "1", "--threads", "1"]) == 0
    assert Config.load(Path("best")).seed == 0
    best = {n: Config.load(Path("tuned/trials") / str(n)).hyperparameters for n in (0, 2, 3)}
    assert Config.load(Path("best")).hyperparameters in best.values()
    assert tuned(3, "--timesteps", "640") == 1
    assert "holds trials of" in capsys.readouterr().err


def test_a_trial_that_falls_behind_is_stopped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(optuna.pruners, "MedianPruner", lambda **_: optuna.pruners.ThresholdPruner(lower=1e9))
    assert tuned(1) == 1
    assert "None of 1 trials" in capsys.readouterr().err
    assert len([row for row in read_rows(Path("tuned/trials/0")) if row.mode == "greedy"]) == 1


@pytest.mark.parametrize("evaluation", ["replay", "lambda"])
def test_whatever_is_suggested_is_a_hyperparameter(evaluation: str) -> None:
    for algo in ("staq", "exact-pmd", "ac-mproj"):
        known = presets.defaults(algo, evaluation)
        for seed in range(5):
            study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
            found = suggested(study.ask(), evaluation, known, n_envs=50)
            assert found["policy_update_interval"] % 50 == 0
            presets.check_hyperparameters({"evaluation": evaluation, **found}, algo)
