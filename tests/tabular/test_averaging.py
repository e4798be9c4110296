"""The error-averaging study at a size that runs in seconds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from staq.tabular import averaging
from staq.tabular.averaging import FittedQ, Row, Study, draw, read, scaled_to, verdict, write
from staq.tabular.grids import pendulum


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(averaging, "MEMORIES", (1, 2, 3))
    monkeypatch.setattr(averaging, "SMOOTHING", 2)


def study(size: int, n_seeds: int, iterations: int, gradient_steps: int) -> list[Row]:
    all_of_it = Study(pendulum(size), n_seeds, gradient_steps)
    for _ in range(iterations):
        all_of_it.iterate()
    return all_of_it.rows


@pytest.mark.usefixtures("small")
def test_rows_begin_when_m_errors_exist_and_repeat() -> None:
    rows = study(8, 3, 6, gradient_steps=20)
    for memory in (1, 2, 3):
        assert min(r.iteration for r in rows if memory in r.differences) == memory
    assert {r.seed for r in rows} == {0, 1, 2}
    assert all(r.differences[1] == 0 for r in rows), "the average of one error is that error"
    assert rows == study(8, 3, 6, gradient_steps=20)


@pytest.mark.usefixtures("small")
def test_an_interrupted_study_goes_on_with_the_same_numbers(tmp_path: Path) -> None:
    begun = Study(pendulum(8), 2, gradient_steps=20)
    for _ in range(4):
        begun.iterate()
    begun.save(tmp_path / "study.safetensors")
    continued = Study(pendulum(8), 2, gradient_steps=20)
    continued.restore(tmp_path / "study.safetensors")
    while continued.iteration < 7:
        continued.iterate()
    assert continued.rows == study(8, 2, 7, gradient_steps=20)
    with pytest.raises(ValueError, match="2 seeds, not 3"):
        Study(pendulum(8), 3).restore(tmp_path / "study.safetensors")


def test_averages_by_hand() -> None:
    """M = 5 with errors 1, −1, 1, −1, 1 in one entry: the weights of β = 1/1.03 alternate and cancel."""
    errors = [np.full((1, 1, 1), (-1.0) ** i) for i in range(5)]
    (row,) = averaging._rows("value", 5, errors)
    beta = 1 / 1.03
    average = (1 - beta) / (1 - beta**5) * (1 - beta + beta**2 - beta**3 + beta**4)
    assert row.last_norm == 1.0
    assert row.differences[5] == pytest.approx(average - 1, abs=1e-5)


def test_networks_fit_their_own_targets() -> None:
    grid = pendulum(8)
    fitted, rng = FittedQ(grid, 2), np.random.default_rng(0)
    plane = grid.observations @ rng.normal(size=(3, 3))
    targets = np.stack([plane, -plane])
    q = fitted.fit(targets, 1500)
    assert np.abs(q - targets).max() < 0.2 * np.abs(targets).max()


@pytest.mark.usefixtures("small")
def test_rows_round_trip_and_draw(tmp_path: Path) -> None:
    rows = study(6, 2, 12, gradient_steps=5)
    write(rows, tmp_path / "rows.csv")
    assert read(tmp_path / "rows.csv") == rows
    draw({"pendulum": rows, "again": rows}, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 10_000
    assert len(verdict(rows)) == 6


def test_verdicts() -> None:
    def rows(value: float) -> list[Row]:
        return [
            Row(s, k, e, 1.0, {m: value + 0.01 * s for m in averaging.MEMORIES if m <= k})
            for s in range(4)
            for e in ("bellman", "value")
            for k in range(min(averaging.MEMORIES), 80)
        ]

    assert all("averages out" in line for line in verdict(rows(-1.0)))
    assert all("does not" in line for line in verdict(rows(1.0)))
    assert all("undecided" in line for line in verdict(rows(-0.015)))


def test_budgets() -> None:
    assert scaled_to(1.0) == (50, 300)
    assert scaled_to(0.25) == (25, 150)
    assert scaled_to(0.0001) == (2, 70)
    with pytest.raises(ValueError, match="budget=0"):
        scaled_to(0)
