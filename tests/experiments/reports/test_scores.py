"""Returns and times from folders to arrays."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from staq.experiments import plans as experiments
from staq.experiments.record import TIMING, plan
from staq.experiments.reports import write
from staq.experiments.reports.scores import RANDOM, normalised, normalised_finals, paper, ratios, results, timings
from tests.experiments.reports.conftest import lay, planned


def test_the_scale() -> None:
    assert normalised(np.array([RANDOM["CartPole-v1"], 500.0]), "CartPole-v1") == pytest.approx([0, 1])
    assert set(paper("table_1")) == set(RANDOM)


def test_finals_compare_whole_seeds_in_common_environments(tmp_path: Path) -> None:
    for i, run in enumerate(planned(tmp_path)):
        missing = (run.variant, run.config.env, run.config.seed) == ("StaQ M=50", "MinAtar/Breakout-v1", 0)
        lay(run, [0.0, 0.0, 0.0, 1.0 + i], finished=not missing)
    finals = normalised_finals(results(planned(tmp_path)), ["StaQ M=1", "StaQ M=50"])
    assert finals.environments == ["MinAtar/Breakout-v1", "MinAtar/Freeway-v1"]
    assert finals.seeds == {"StaQ M=1": [0, 1, 2], "StaQ M=50": [1, 2]}
    # Runs are listed seed by seed, game by game: M = 50 of seed 1 is the sixth in Breakout and the eighth in Freeway.
    assert finals.scores["StaQ M=50"][0] == pytest.approx([(6 - 0.38) / (44 - 0.38), (8 - 0.57) / (62 - 0.57)])


@pytest.mark.parametrize("finished", [0, 1, 2])
def test_an_environment_that_would_cost_the_interval_is_left_out_of_aggregates(finished: int, tmp_path: Path) -> None:
    """Breakout has three seeds of both, Freeway three of one and so many of the other: two are as few as may be."""
    for run in planned(tmp_path):
        if (run.variant, run.config.env) != ("StaQ M=50", "MinAtar/Freeway-v1") or run.config.seed < finished:
            lay(run, [1.0, 2.0, 3.0, 4.0])
    finals = normalised_finals(results(planned(tmp_path)), ["StaQ M=1", "StaQ M=50"])
    assert finals.environments == ["MinAtar/Breakout-v1", "MinAtar/Freeway-v1"][: 1 + (finished == 2)]
    assert finals.scores["StaQ M=50"].shape == ((2, 2) if finished == 2 else (3, 1))


def test_one_seed_is_aggregated_over_all_environments(tmp_path: Path) -> None:
    for run in planned(tmp_path, seeds=1):
        lay(run, [1.0, 2.0, 3.0, 4.0])
    assert normalised_finals(results(planned(tmp_path)), ["StaQ M=1", "StaQ M=50"]).scores["StaQ M=1"].shape == (1, 2)


def test_curves_take_greedy_rows_and_the_nearest_evaluation(tmp_path: Path) -> None:
    first, second, *_ = planned(tmp_path, seeds=1)
    lay(first, [1.0, 2.0, 3.0, 4.0], late=400)  # as an algorithm with other iterations
    lay(second, [5.0, 6.0], finished=False)
    found = results(planned(tmp_path, seeds=1))["MinAtar/Breakout-v1"]
    assert found["StaQ M=1"].returns.tolist() == [[1.0, 2.0, 3.0, 4.0]]
    assert found["StaQ M=1"].final == {0: 4.0}
    assert found["StaQ M=50"].returns[0, :2].tolist() == [5.0, 6.0]
    assert np.isnan(found["StaQ M=50"].returns[0, 2:]).all()
    assert found["StaQ M=50"].final == {}, "it is not finished"


def test_ratios_of_time_pair_rounds_and_know_their_unit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = experiments.load("runtime")
    ms = {("StaQ M=1", 1): 10.0, ("StaQ M=1", 2): 20.0, ("StaQ M=300", 0): 1.0, ("StaQ M=300", 1): 11.0}
    ms |= {("StaQ M=300", 2): 22.0, ("AC-NoKL", 0): 5.0, ("AC-MProj", 1): 3.0}
    for run in plan(experiment, tmp_path):
        if (run.variant, run.config.seed) in ms:
            lay(run, [], finished=False)
            total = ms[run.variant, run.config.seed]
            machine = "another" if (run.variant, run.config.seed) == ("AC-MProj", 1) else "this one"
            content = {"total_ms": total, "ms": {}, "peak_gb": 1.0, "machine": machine}
            (run.folder / TIMING).write_text(json.dumps(content))
    monkeypatch.setattr(os, "cpu_count", lambda: 99)  # it is reported on another machine
    found = timings(plan(experiment, tmp_path))
    assert ratios(found, "StaQ M=300", "StaQ M=1").tolist() == pytest.approx([1.1, 1.1])
    assert ratios(found, "AC-NoKL", "StaQ M=1").size == 0
    assert ratios(found, "AC-MProj", "StaQ M=1").size == 0, "of two machines"
    page = write(experiment, plan(experiment, tmp_path), tmp_path, progress=lambda: None).read_text()
    assert "1.1 [1.1, 1.1]" in page
    assert page.count("both were not timed in two rounds yet") == 7
    assert "on another and this one" in page
