"""The paper's claims against an experiment's results: confirmed, refuted, or not decidable at this budget."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from staq.reports.scores import Results, normalised_finals
from staq.reports.statistics import Estimate, mean_interval

CONFIRMED, REFUTED, OPEN = "confirmed", "refuted", "not decidable at this budget"
CLOSE = 0.1
"""Normalised returns that differ by less are called the same."""
ENOUGH_SEEDS = 3
ACTORS = ("AC-NoKL", "AC-MProj", "AC-DirectOpt")

Finals = dict[str, np.ndarray]
"""Normalised final returns per variant, [seeds, envs]."""


@dataclass(frozen=True)
class Verdict:
    """What the results say of one claim."""

    claim: str
    verdict: str
    because: str


def difference(finals: Finals, a: str, b: str) -> tuple[float, float, float] | None:
    """Mean of a − b over environments with its 95 % interval over seeds; None without enough seeds of both."""
    if a not in finals or b not in finals:
        return None
    n = min(len(finals[a]), len(finals[b]))
    if n < ENOUGH_SEEDS:
        return None
    estimate = mean_interval(finals[a][:n].mean(1) - finals[b][:n].mean(1))
    assert estimate.low is not None
    assert estimate.high is not None
    return estimate.value, estimate.low, estimate.high


def _lacking(a: str, b: str) -> str:
    return f"{a} and {b} were not both run with {ENOUGH_SEEDS} seeds"


def same(claim: str, a: str, b: str, deletes: bool) -> Callable[[Finals], Verdict]:
    """a ends where b does."""

    def judge(finals: Finals) -> Verdict:
        if not deletes:
            return Verdict(claim, OPEN, f"{a} has not deleted a Q-function at this budget: it is {b}")
        found = difference(finals, a, b)
        if found is None:
            return Verdict(claim, OPEN, _lacking(a, b))
        words = f"{a} − {b}: {found[0]:+.2f} [{found[1]:+.2f}, {found[2]:+.2f}]"
        if found[1] > -CLOSE and found[2] < CLOSE:
            return Verdict(claim, CONFIRMED, f"{words}, within ±{CLOSE}")
        if found[1] > CLOSE or found[2] < -CLOSE:
            return Verdict(claim, REFUTED, words)
        return Verdict(claim, OPEN, f"{words}: the interval is wider than ±{CLOSE}")

    return judge


def above(claim: str, a: str, b: str) -> Callable[[Finals], Verdict]:
    """a ends above b."""

    def judge(finals: Finals) -> Verdict:
        found = difference(finals, a, b)
        if found is None:
            return Verdict(claim, OPEN, _lacking(a, b))
        words = f"{a} − {b}: {found[0]:+.2f} [{found[1]:+.2f}, {found[2]:+.2f}]"
        verdict = CONFIRMED if found[1] > 0 else REFUTED if found[2] < 0 else OPEN
        return Verdict(claim, verdict, words)

    return judge


def judged(experiment: str, found: Results, variants: list[str], timesteps: int, interval: int = 5000) -> list[Verdict]:
    """Every claim that an experiment bears on."""

    def deletes(memory_size: int) -> bool:
        return timesteps > memory_size * interval

    claims: dict[str, list[Callable[[Finals], Verdict]]] = {
        "memory": [
            same("M = 300 is virtually exact mirror descent", "StaQ M=300", "Exact PMD", deletes(300)),
            above("performance grows with M: 50 above 1", "StaQ M=50", "StaQ M=1"),
            above("performance grows with M: 300 above 50", "StaQ M=300", "StaQ M=50"),
            above("AC-DirectOpt lies above M = 1", "AC-DirectOpt", "StaQ M=1"),
            above("AC-DirectOpt lies below M = 50", "StaQ M=50", "AC-DirectOpt"),
            above("AC-MProj lies above M = 1", "AC-MProj", "StaQ M=1"),
            above("AC-MProj lies below M = 50", "StaQ M=50", "AC-MProj"),
            above("AC-NoKL lies below M = 1", "StaQ M=1", "AC-NoKL"),
        ],
        "memory-small": [
            above("performance grows with M: 10 above 1", "StaQ M=10", "StaQ M=1"),
            above("performance grows with M: 30 above 10", "StaQ M=30", "StaQ M=10"),
            same("a large enough M is exact mirror descent: 30", "StaQ M=30", "Exact PMD", deletes(30)),
            above("AC-MProj lies above M = 1", "AC-MProj", "StaQ M=1"),
        ],
        "mountaincar": [above("sticky actions solve MountainCar", "StaQ sticky", "StaQ softmax")],
    }
    finals = normalised_finals(found, variants)
    verdicts = [judge(finals) for judge in claims.get(experiment, [])]
    if experiment == "epsilon":
        for game in ("Breakout", "Seaquest"):
            env = f"MinAtar/{game}-v1"
            judge = above(f"a uniform action now and then matters on {game}", "StaQ M=300 ε=0.05", "StaQ M=300 ε=0")
            verdicts.append(judge(normalised_finals({env: found[env]} if env in found else {}, variants)))
    return verdicts


def judged_times(ratios: dict[str, Estimate], paper: dict[str, float]) -> list[Verdict]:
    """The paper's claims about time, given each variant's over that of M = 1.

    :param paper: the same ratios of its hours
    """
    verdicts = []
    for name, low, high in [("StaQ M=300", 1.0, 1.1), *((name, 1.35, 1.45) for name in ACTORS)]:
        claim = f"{name} takes {low - 1:.0%} to {high - 1:.0%} longer than M = 1 ({paper[name] - 1:.0%} there)"
        found = ratios.get(name)
        if found is None or found.low is None or found.high is None:
            verdicts.append(Verdict(claim, OPEN, "not timed in two rounds yet"))
        elif found.low > high or found.high < low:
            verdicts.append(Verdict(claim, REFUTED, f"{found} on this machine"))
        elif low <= found.low and found.high <= high:
            verdicts.append(Verdict(claim, CONFIRMED, f"{found} on this machine"))
        else:
            verdicts.append(Verdict(claim, OPEN, f"{found} on this machine"))
    return verdicts
