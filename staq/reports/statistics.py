"""Estimates with their uncertainty. The seed is the unit: episodes of one run say nothing about other runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

LEVEL = 0.95
REPETITIONS = 2000
"""Bootstrap samples."""
REPETITIONS_OF_CURVES = 300
"""The same for whole curves, whose bands are read less finely."""


@dataclass(frozen=True)
class Estimate:
    """A number and its 95 % interval; None where there is no second seed to tell."""

    value: float
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        return f"{self.value:.3g}" if self.low is None else f"{self.value:.3g} [{self.low:.3g}, {self.high:.3g}]"


def mean_interval(values: np.ndarray) -> Estimate:
    """Mean over seeds with Student's interval."""
    values = values[~np.isnan(values)]
    mean = float(values.mean())
    if len(values) < 2:
        return Estimate(mean)
    half = float(stats.t.ppf((1 + LEVEL) / 2, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values)))
    return Estimate(mean, mean - half, mean + half)


def interquartile_means(scores: Mapping[str, np.ndarray], seed: int = 0) -> dict[str, Estimate]:
    """IQM over all runs and environments with stratified bootstrap intervals, by rliable. [seeds, envs] each"""
    from rliable import metrics

    return _bootstrapped(scores, lambda x: np.array([metrics.aggregate_iqm(x)]), seed)


def interquartile_curves(scores: Mapping[str, np.ndarray], seed: int = 0) -> dict[str, list[Estimate]]:
    """The same at every evaluation, in one bootstrap. [seeds, envs, evaluations] each"""
    from rliable import library, metrics

    def every(x: np.ndarray) -> np.ndarray:
        return np.array([metrics.aggregate_iqm(x[..., i]) for i in range(x.shape[-1])])

    found = {}
    for name, values in scores.items():
        points = every(values)
        if len(values) < 2:
            found[name] = [Estimate(float(point)) for point in points]
            continue
        np.random.seed(seed)  # noqa: NPY002
        _, intervals = library.get_interval_estimates({name: values}, every, reps=REPETITIONS_OF_CURVES)
        low, high = intervals[name]
        found[name] = [Estimate(*map(float, three)) for three in zip(points, low, high, strict=True)]
    return found


def probabilities_of_improvement(
    scores: Mapping[str, np.ndarray], pairs: list[tuple[str, str]], seed: int = 0
) -> dict[tuple[str, str], Estimate]:
    """P(a run of the first beats one of the second), averaged over environments, by rliable."""
    from rliable import library, metrics

    found = {}
    for pair in pairs:
        x, y = scores[pair[0]], scores[pair[1]]
        value = float(metrics.probability_of_improvement(x, y))
        if min(len(x), len(y)) < 2:
            found[pair] = Estimate(value)
            continue
        np.random.seed(seed)  # noqa: NPY002  # rliable draws from the global generator
        _, intervals = library.get_interval_estimates(
            {"pair": (x, y)}, metrics.probability_of_improvement, reps=REPETITIONS
        )
        found[pair] = Estimate(value, *(float(bound) for bound in intervals["pair"].flatten()))
    return found


def performance_profiles(scores: Mapping[str, np.ndarray], thresholds: np.ndarray, seed: int = 0) -> dict[str, Any]:
    """Share of runs above each score, with intervals where there are several seeds. → (shares, bounds or None)"""
    from rliable import library

    found: dict[str, Any] = {}
    for name, values in scores.items():
        if len(values) < 2:
            found[name] = ((values.flatten()[None] > thresholds[:, None]).mean(1), None)
            continue
        np.random.seed(seed)  # noqa: NPY002
        shares, bounds = library.create_performance_profile({name: values}, thresholds, reps=REPETITIONS)
        found[name] = (shares[name], bounds[name])
    return found


def _bootstrapped(
    scores: Mapping[str, np.ndarray], function: Callable[[np.ndarray], np.ndarray], seed: int
) -> dict[str, Estimate]:
    from rliable import library

    found = {}
    for name, values in scores.items():
        value = float(function(values)[0])
        if len(values) < 2:
            found[name] = Estimate(value)
            continue
        np.random.seed(seed)  # noqa: NPY002
        _, intervals = library.get_interval_estimates({name: values}, function, reps=REPETITIONS)
        found[name] = Estimate(value, *(float(bound) for bound in intervals[name].flatten()))
    return found
