"""Estimates with their uncertainty. The seed is the unit: episodes of one run say nothing about other runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

try:
    from rliable import library, metrics
except ImportError as error:
    raise ModuleNotFoundError("Reports need rliable: pip install 'staq[experiments]'") from error

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

    def overall(x: np.ndarray) -> np.ndarray:
        return np.array([metrics.aggregate_iqm(x)])

    return {name: _bootstrapped((values,), overall, REPETITIONS, seed)[0] for name, values in scores.items()}


def interquartile_curves(scores: Mapping[str, np.ndarray], seed: int = 0) -> dict[str, list[Estimate]]:
    """The same at every evaluation, in one bootstrap. [seeds, envs, evaluations] each"""

    def every(x: np.ndarray) -> np.ndarray:
        return np.array([metrics.aggregate_iqm(x[..., i]) for i in range(x.shape[-1])])

    return {name: _bootstrapped((values,), every, REPETITIONS_OF_CURVES, seed) for name, values in scores.items()}


def probabilities_of_improvement(
    scores: Mapping[str, np.ndarray], pairs: list[tuple[str, str]], seed: int = 0
) -> dict[tuple[str, str], Estimate]:
    """P(a run of the first beats one of the second), averaged over environments, by rliable."""

    def improvement(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.array([metrics.probability_of_improvement(x, y)])

    return {(a, b): _bootstrapped((scores[a], scores[b]), improvement, REPETITIONS, seed)[0] for a, b in pairs}


def performance_profiles(scores: Mapping[str, np.ndarray], thresholds: np.ndarray, seed: int = 0) -> dict[str, Any]:
    """Share of runs above each score, with intervals where there are several seeds. → (shares, bounds or None)"""
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
    samples: tuple[np.ndarray, ...], function: Callable[..., np.ndarray], repetitions: int, seed: int
) -> list[Estimate]:
    """One estimate for each number that a function of samples [seeds, …] has; without intervals for one seed."""
    points = function(*samples)
    if min(map(len, samples)) < 2:
        return [Estimate(float(point)) for point in points]
    np.random.seed(seed)  # noqa: NPY002  # rliable draws from the global generator
    what = samples if len(samples) > 1 else samples[0]
    _, intervals = library.get_interval_estimates({"": what}, function, reps=repetitions)
    return [Estimate(*map(float, three)) for three in zip(points, *intervals[""], strict=True)]
