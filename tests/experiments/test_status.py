"""The time that is left, and times in words."""

from __future__ import annotations

from pathlib import Path

import pytest

from staq.experiments import plans as experiments
from staq.experiments import status
from staq.experiments.record import plan
from tests.experiments.conftest import lay


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


def test_times_in_words() -> None:
    assert [status.in_words(s) for s in (40, 720, 12_600, 800_000)] == ["40 s", "12 min", "3.5 h", "9 days"]
