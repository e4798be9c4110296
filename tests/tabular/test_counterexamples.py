"""Every counterexample of docs/theory.md: the numbers on that page, violated as stated, held as repaired."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from staq.tabular import bounds
from staq.tabular.bounds import Sides
from staq.tabular.mdp import MDP
from staq.tabular.mirror_descent import Run, Settings, run
from staq.tabular.operators import optimal_q

ROOT = Path(__file__).parent.parent.parent
GREEDY = 1e-4
"""An entropy weight at which policies are greedy and its own terms negligible."""


def one_state(rewards: tuple[float, float], gamma: float) -> MDP:
    return MDP(np.array([rewards]), np.ones((2, 1)), gamma)


def listed(*errors: tuple[float, float]) -> Callable[[int], np.ndarray]:
    return lambda k: np.array([errors[k]])


def fails_and_is_mended(stated: Sides, repaired: Sides, left: float, right: float, tolerance: float) -> None:
    assert stated.left == pytest.approx(left, abs=tolerance)
    assert stated.right == pytest.approx(right, abs=tolerance)
    assert stated.left > stated.right
    assert repaired.left <= repaired.right + 1e-12


def both(statement: Callable[..., list[Sides]], history: Run, k: int) -> tuple[Sides, Sides]:
    optimal = optimal_q(history.mdp, history.settings.entropy_weight)
    return statement(history, optimal, repaired=False)[k], statement(history, optimal, repaired=True)[k]


def test_theorem_4_2() -> None:
    errors = listed((0, 0), (1, 0), (0, 1), (0, 0))
    history = run(one_state((0, 0), 0.5), Settings(GREEDY, GREEDY, "value"), 4, errors)
    np.testing.assert_allclose(GREEDY * history.logits[4], [[5 / 8, 3 / 4]], atol=1e-3)
    fails_and_is_mended(*both(bounds.theorem_4_2, history, 3), 3 / 4, 5 / 8, 1e-3)


def test_theorem_4_2_with_update_errors() -> None:
    history = run(one_state((0, 0), 0.5), Settings(1.0, 9.0, "value"), 2, update_errors=listed((0, 0), (100, 0)))
    stated, repaired = both(bounds.theorem_4_2, history, 1)
    fails_and_is_mended(stated, repaired, 99.34, 10.66, 1e-2)


def test_lemma_4_3() -> None:
    history = run(one_state((0, 0), 0.5), Settings(1.0, 1.0), 1, listed((0, 1)))
    stated, repaired = (bounds.lemma_4_3(history, repaired)[0] for repaired in (False, True))
    # It claims an improvement of 0.122 where there is a loss of 0.030.
    assert stated.left == pytest.approx(0.1225 + 0.0303, abs=1e-3)
    assert repaired.left <= 0


def test_theorem_4_4_sign() -> None:
    history = run(one_state((0, 0), 0.9), Settings(GREEDY, GREEDY), 2, listed((-1, 0), (-10, -10)))
    fails_and_is_mended(*both(bounds.theorem_4_4, history, 1), 5.25, 3.675, 1e-2)


def test_theorem_4_4_missing_side() -> None:
    history = run(one_state((0, 0), 0.5), Settings(GREEDY, GREEDY), 2, listed((1, 0), (1, 1)))
    stated, repaired = both(bounds.theorem_4_4, history, 1)
    corrected_sign_alone = repaired.right - repaired.terms["other side"]
    assert corrected_sign_alone == pytest.approx(5 / 8, abs=1e-3)
    assert stated.left == pytest.approx(3 / 4, abs=1e-3)
    assert stated.left <= repaired.right + 1e-12


def test_theorem_5_1_without_errors() -> None:
    beta = 0.1
    settings = Settings(GREEDY, GREEDY * beta / (1 - beta), "policy", memory_size=8)
    history = run(one_state((1, -1), 0.5), settings, 1)
    assert bounds.memory_threshold(0.5, beta) == pytest.approx(1.4, abs=0.05)
    fails_and_is_mended(*both(bounds.theorem_5_1, history, 0), 1.1, 1.013, 2e-3)


def test_theorem_5_1_missing_side() -> None:
    """Without rewards there is no transient: Q* and T*0 vanish with τ."""
    settings = Settings(GREEDY, GREEDY, "policy", memory_size=20)
    history = run(one_state((0, 0), 0.5), settings, 2, listed((1, 0), (1, 1)))
    assert bounds.memory_threshold(0.5, 0.5) == pytest.approx(4.75, abs=0.01)
    fails_and_is_mended(*both(bounds.theorem_5_1, history, 1), 0.750, 0.625, 1e-3)


def test_the_page_has_the_counts_of_the_last_audit() -> None:
    page = (ROOT / "docs" / "theory.md").read_text().replace("\\*", "*")
    for row in json.loads((ROOT / "results" / "theory" / "audit.json").read_text())["statements"]:
        repaired = row["violations_as_repaired"]
        counts = f"{row['violations_as_stated']} | {'' if repaired is None else repaired} |"
        assert f"| {row['statement']} | {counts}" in page
