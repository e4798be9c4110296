"""Statistics against rliable's own and hand-worked ones."""

from __future__ import annotations

import numpy as np
import pytest
from rliable import library, metrics

from staq.experiments.reports.statistics import (
    REPETITIONS,
    interquartile_curves,
    interquartile_means,
    mean_interval,
    performance_profiles,
    probabilities_of_improvement,
)

RNG = np.random.default_rng(0)
SCORES = {"a": RNG.normal(0.6, 0.2, (6, 3)), "b": RNG.normal(0.4, 0.2, (6, 3))}


def test_a_students_interval_by_hand() -> None:
    """1, 2, 3: mean 2, deviation 1, t = 4.303, half width 4.303/√3 = 2.484."""
    estimate = mean_interval(np.array([1.0, 2.0, 3.0, np.nan]))
    assert (estimate.value, estimate.low, estimate.high) == pytest.approx((2, -0.484, 4.484), abs=1e-3)


def test_interquartile_means_are_rliables() -> None:
    found = interquartile_means(SCORES, seed=3)
    for name, values in SCORES.items():
        np.random.seed(3)  # noqa: NPY002
        points, intervals = library.get_interval_estimates(
            {name: values}, lambda x: np.array([metrics.aggregate_iqm(x)]), reps=REPETITIONS
        )
        assert found[name].value == points[name][0]
        assert (found[name].low, found[name].high) == tuple(intervals[name].flatten())
    assert interquartile_means(SCORES, seed=3) == found


def test_one_seed_has_no_interval() -> None:
    one = {name: values[:1] for name, values in SCORES.items()}
    assert interquartile_means(one)["a"].low is None
    assert mean_interval(np.array([1.0])).high is None
    assert probabilities_of_improvement(one, [("a", "b")])["a", "b"].low is None
    assert performance_profiles(one, np.linspace(0, 1, 5))["a"][1] is None
    assert "[" not in str(mean_interval(np.array([1.0])))


def test_probability_of_improvement() -> None:
    estimate = probabilities_of_improvement(SCORES, [("a", "b")])["a", "b"]
    by_hand = np.mean([[np.mean(x > y) for x in SCORES["a"][:, e] for y in SCORES["b"][:, e]] for e in range(3)])
    assert estimate.value == pytest.approx(by_hand)
    assert estimate.low is not None
    assert estimate.low < estimate.value


def test_profiles_fall_from_one_to_zero() -> None:
    shares, bounds = performance_profiles(SCORES, np.array([-9.0, 0.5, 9.0]))["a"]
    assert shares[0] == 1
    assert shares[-1] == 0
    assert shares[1] == pytest.approx((SCORES["a"] > 0.5).mean())
    assert bounds is not None


def test_the_interquartile_curve_is_the_mean_of_each_step() -> None:
    values = RNG.normal(0.5, 0.2, (4, 2, 3))
    found = interquartile_curves({"a": values})["a"]
    for step in range(3):
        assert found[step].value == metrics.aggregate_iqm(values[:, :, step])
