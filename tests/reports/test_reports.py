"""Statistics against rliable's own and hand-worked ones; figures that exist; verdicts that can go either way."""

from __future__ import annotations

import numpy as np
import pytest
from rliable import library, metrics

from staq.reports import claims
from staq.reports.claims import CONFIRMED, OPEN, REFUTED
from staq.reports.scores import RANDOM, Curves, Results, normalised, paper
from staq.reports.statistics import (
    REPETITIONS,
    Estimate,
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


def test_the_scale() -> None:
    assert normalised(np.array([RANDOM["CartPole-v1"], 500.0]), "CartPole-v1") == pytest.approx([0, 1])
    assert set(paper("table_1")) == set(RANDOM)


@pytest.mark.parametrize(
    ("shift", "verdict"), [(0.0, CONFIRMED), (0.5, REFUTED), (-0.5, REFUTED), (0.1, OPEN)], ids=str
)
def test_sameness_can_be_confirmed_refuted_and_open(shift: float, verdict: str) -> None:
    base = RNG.normal(0.5, 0.01, (5, 3))
    finals = {"a": base + shift, "b": base + RNG.normal(0, 0.01, (5, 3))}
    assert claims.same("", "a", "b", deletes=True)(finals).verdict == verdict
    assert claims.same("", "a", "b", deletes=False)(finals).verdict == OPEN


@pytest.mark.parametrize(("shift", "verdict"), [(0.5, CONFIRMED), (-0.5, REFUTED), (0.0, OPEN)], ids=str)
def test_an_order_can_be_confirmed_refuted_and_open(shift: float, verdict: str) -> None:
    noise = RNG.normal(0, 0.05, (5, 3))
    finals = {"a": 0.5 + shift + noise, "b": 0.5 - noise}
    assert claims.above("", "a", "b")(finals).verdict == verdict
    assert claims.above("", "a", "b")({"a": finals["a"][:2], "b": finals["b"][:2]}).verdict == OPEN
    assert claims.above("", "a", "c")(finals).verdict == OPEN


def ended_at(env: str, **returns: float) -> Results:
    """Five finished seeds of each variant, that end close to a return."""

    def curves(value: float) -> Curves:
        return Curves(np.array([5000]), value + 0.01 * np.arange(5)[:, None], list(range(5)), [True] * 5)

    return {env: {name: curves(value) for name, value in returns.items()}}


def test_a_memory_that_deletes_nothing_decides_nothing() -> None:
    names = ["StaQ M=300", "Exact PMD"]
    found = ended_at("MinAtar/Breakout-v1", **dict.fromkeys(names, 40.0))
    assert claims.judged("memory", found, names, timesteps=500_000)[0].verdict == OPEN
    assert claims.judged("memory", found, names, timesteps=5_000_000)[0].verdict == CONFIRMED


def test_uniform_actions_are_judged_game_by_game() -> None:
    names = ["StaQ M=300 ε=0.05", "StaQ M=300 ε=0"]
    found = ended_at("MinAtar/Breakout-v1", **dict(zip(names, (40, 20), strict=True)))
    found |= ended_at("MinAtar/Freeway-v1", **dict(zip(names, (40, 60), strict=True)))
    verdicts = claims.judged("epsilon", found, names, timesteps=5_000_000)
    assert [verdict.verdict for verdict in verdicts] == [CONFIRMED, OPEN], "Seaquest was not run"


@pytest.mark.parametrize(
    ("ratio", "verdict"),
    [
        (Estimate(1.4, 1.36, 1.44), CONFIRMED),
        (Estimate(1.4, 1.3, 1.5), OPEN),
        (Estimate(2.0, 1.9, 2.1), REFUTED),
        (Estimate(1.4), OPEN),
    ],
)
def test_claims_about_time(ratio: Estimate, verdict: str) -> None:
    hours = paper("hours")
    ratios = {name: hours[name] / hours["StaQ M=1"] for name in hours}
    verdicts = claims.judged_times(dict.fromkeys(claims.ACTORS, ratio), ratios)
    assert [v.verdict for v in verdicts] == [OPEN, verdict, verdict, verdict]
    assert "(45% there)" in verdicts[1].claim
