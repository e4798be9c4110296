"""The paper's claims against an experiment's results: confirmed, refuted, or not decidable at this budget."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from staq.reports.scores import Results, can_be_normalised, normalised
from staq.reports.statistics import Estimate, mean_interval
from staq.timing import INTERVAL

CONFIRMED, REFUTED, OPEN = "confirmed", "refuted", "not decidable at this budget"
CLOSE = 0.1
"""Normalised returns that differ by less are called the same."""
ENOUGH_SEEDS = 3
ENOUGH_STEPS = 0.1
"""Of the paper's: before that no algorithm has shown what it can."""
ACTORS = ("AC-NoKL", "AC-MProj", "AC-DirectOpt")
RIVALS = ("DQN", "M-DQN", "PPO", "TRPO")
BUT_MOUNTAINCAR = (
    *("CartPole-v1", "Acrobot-v1", "LunarLander-v3"),
    *(f"MinAtar/{game}-v1" for game in ("Asterix", "Breakout", "Freeway", "Seaquest", "SpaceInvaders")),
)


@dataclass(frozen=True)
class Verdict:
    """What the results say of one claim."""

    claim: str
    verdict: str
    because: str


@dataclass(frozen=True)
class Claim:
    """Of two variants: ``a`` ends ``above`` b, or no lower (``reaches``), or at the ``same`` return."""

    text: str
    a: str
    relation: str
    b: str
    environments: tuple[str, ...] = ()
    """Where; everywhere, if none is named."""
    memory: int = 0
    """The smallest M that has to have deleted for half of the run, since the claim is about what deletion does."""
    one_by_one: bool = False
    """Has to hold in each environment rather than on average."""


def above(text: str, a: str, b: str, memory: int = 0, environments: tuple[str, ...] = ()) -> Claim:
    return Claim(text, a, "above", b, environments, memory)


CLAIMS: dict[str, list[Claim]] = {
    "memory": [
        Claim("M = 300 is virtually exact mirror descent", "StaQ M=300", "same", "Exact PMD", (), 300, True),
        Claim("M = 100 matches it on average", "StaQ M=100", "same", "Exact PMD", (), 100),
        above("performance grows with M: 50 above 1", "StaQ M=50", "StaQ M=1", 1),
        above("performance grows with M: 300 above 50", "StaQ M=300", "StaQ M=50", 50),
        above("AC-DirectOpt lies above M = 1", "AC-DirectOpt", "StaQ M=1", 1),
        above("AC-DirectOpt lies below M = 50", "StaQ M=50", "AC-DirectOpt", 50),
        above("AC-MProj lies above M = 1", "AC-MProj", "StaQ M=1", 1),
        above("AC-MProj lies below M = 50", "StaQ M=50", "AC-MProj", 50),
        above("AC-NoKL lies below M = 1", "StaQ M=1", "AC-NoKL", 1),
        above("M = 300 lies above NatGrad", "StaQ M=300", "NatGrad"),
    ],
    "memory-small": [
        above("performance grows with M: 10 above 1", "StaQ M=10", "StaQ M=1", 1),
        above("performance grows with M: 30 above 10", "StaQ M=30", "StaQ M=10", 10),
        Claim("a large enough M is exact mirror descent: 30", "StaQ M=30", "same", "Exact PMD", (), 30, True),
        above("AC-MProj lies above M = 1", "AC-MProj", "StaQ M=1", 1),
    ],
    "deep-rl": [
        Claim(
            f"StaQ reaches {rival} everywhere but on MountainCar",
            "StaQ M=300",
            "reaches",
            rival,
            BUT_MOUNTAINCAR,
            one_by_one=True,
        )
        for rival in (*RIVALS, "NatGrad")
    ],
    "mountaincar": [
        *(Claim(f"sticky StaQ reaches {rival}", "StaQ sticky", "reaches", rival) for rival in RIVALS),
        above("softmax StaQ does not get there", "StaQ sticky", "StaQ softmax"),
    ],
    "epsilon": [
        *(
            above(
                f"a uniform action now and then matters on {game}",
                "StaQ M=300 ε=0.05",
                "StaQ M=300 ε=0",
                environments=(f"MinAtar/{game}-v1",),
            )
            for game in ("Breakout", "Seaquest")
        ),
        *(
            Claim(f"M = 300 stays close to exact at ε = {e}", f"StaQ M=300 ε={e}", "same", f"Exact PMD ε={e}", (), 300)
            for e in ("0", "0.01", "0.05", "0.1")
        ),
    ],
    "natgrad-kl": [
        Claim("ε_KL = 0.001 is no worse than 0.01", "NatGrad ε_KL=0.001", "reaches", "NatGrad ε_KL=0.01"),
    ],
    "actor-steps": [
        Claim(f"{actor}: m = 5000 is no worse than 500", f"{actor} m=5000", "reaches", f"{actor} m=500")
        for actor in ("AC-DirectOpt", "AC-MProj")
    ],
    "mujoco": [
        above(
            f"factored actions beat the boundary on {body}",
            "factored",
            "boundary",
            environments=(f"{body}-v4",),
        )
        for body in ("HalfCheetah", "Walker2d", "Ant")
    ],
}


def judged(experiment: str, found: Results, timesteps: int, paper_timesteps: int) -> list[Verdict]:
    """Every claim that an experiment bears on."""
    return [_judged(claim, found, timesteps, paper_timesteps) for claim in CLAIMS.get(experiment, [])]


def _judged(claim: Claim, found: Results, timesteps: int, paper_timesteps: int) -> Verdict:
    needed = max(ENOUGH_STEPS * paper_timesteps, 2 * claim.memory * INTERVAL)
    if timesteps < needed:
        return Verdict(claim.text, OPEN, f"{timesteps:,} steps, and it takes {needed:,.0f} at least")
    wanted = claim.environments or tuple(env for env in found if can_be_normalised(env))
    differences = dict(_differences(claim, found, wanted))
    missing = [env for env in wanted if env not in differences]
    if missing or not wanted:
        where = ", ".join(missing) or "any environment"
        lacking = f"{claim.a} and {claim.b} do not share {ENOUGH_SEEDS} finished seeds on {where}"
        return Verdict(claim.text, OPEN, lacking)
    if claim.one_by_one:
        cases = {env: mean_interval(np.array(list(by_seed.values()))) for env, by_seed in differences.items()}
    else:
        seeds = sorted(set.intersection(*(set(by_seed) for by_seed in differences.values())))
        if len(seeds) < ENOUGH_SEEDS:
            return Verdict(claim.text, OPEN, f"fewer than {ENOUGH_SEEDS} seeds are finished everywhere")
        means = np.mean([[by_seed[seed] for seed in seeds] for by_seed in differences.values()], axis=0)
        cases = {"on average" if len(wanted) > 1 else wanted[0]: mean_interval(means)}
    verdicts = {env: RELATIONS[claim.relation](estimate) for env, estimate in cases.items()}
    telling = next((v for v in (REFUTED, OPEN) if v in verdicts.values()), CONFIRMED)
    shown = [f"{cases[env]} ({env})" for env, verdict in verdicts.items() if verdict == telling]
    return Verdict(claim.text, telling, f"{claim.a} − {claim.b}: {'; '.join(shown)}")


def _differences(claim: Claim, found: Results, environments: Sequence[str]) -> Iterator[tuple[str, dict[int, float]]]:
    """Per environment a − b of the final returns, normalised where they can be, by the seeds that both finished."""
    for env in environments:
        cells = found.get(env, {})
        if claim.a in cells and claim.b in cells:
            a, b = cells[claim.a].final, cells[claim.b].final
            shared = sorted(a.keys() & b.keys())
            if len(shared) >= ENOUGH_SEEDS:
                pairs = np.array([[a[s], b[s]] for s in shared])
                scaled = normalised(pairs, env) if can_be_normalised(env) else pairs
                yield env, dict(zip(shared, scaled[:, 0] - scaled[:, 1], strict=True))


def _bounds(estimate: Estimate) -> tuple[float, float]:
    assert estimate.low is not None
    assert estimate.high is not None
    return estimate.low, estimate.high


def _is_above(estimate: Estimate) -> str:
    low, high = _bounds(estimate)
    return CONFIRMED if low > 0 else REFUTED if high < 0 else OPEN


def _reaches(estimate: Estimate) -> str:
    low, high = _bounds(estimate)
    return CONFIRMED if low > -CLOSE else REFUTED if high < -CLOSE else OPEN


def _is_the_same(estimate: Estimate) -> str:
    low, high = _bounds(estimate)
    return CONFIRMED if low > -CLOSE and high < CLOSE else REFUTED if low > CLOSE or high < -CLOSE else OPEN


RELATIONS: dict[str, Callable[[Estimate], str]] = {"above": _is_above, "reaches": _reaches, "same": _is_the_same}


def judged_luck(counts: dict[str, tuple[int, int, int]], paper_timesteps: int) -> list[Verdict]:
    """The paper's claim about a uniform policy, given (steps, episodes that reached the goal, all) by sticky rate."""
    if "none" not in counts:
        return []
    steps, reached, episodes = counts["none"]
    verdict = REFUTED if reached else CONFIRMED if steps >= paper_timesteps else OPEN
    because = f"{reached} of {episodes:,} episodes in {steps:,} steps"
    return [Verdict("a uniform policy never reaches the goal in 5M steps", verdict, because)]


def judged_times(ratios: dict[str, Estimate], paper: dict[str, float]) -> list[Verdict]:
    """The paper's claims about time, given each variant's over that of M = 1.

    :param paper: the same ratios of its hours
    """
    verdicts = []
    claims = [("StaQ M=300", 1.0, 1.1), *((name, 1.35, 1.45) for name in ACTORS), ("DQN", 0.55, 0.65)]
    for name, low, high in claims:
        claim = f"{name} takes {low:g} to {high:g} times as long as M = 1 ({paper[name]:.2f} there)"
        found = ratios.get(name)
        if found is None or found.low is None or found.high is None:
            verdicts.append(Verdict(claim, OPEN, "both were not timed in two rounds yet"))
            continue
        inside, outside = low <= found.low and found.high <= high, found.low > high or found.high < low
        verdict = CONFIRMED if inside else REFUTED if outside else OPEN
        verdicts.append(Verdict(claim, verdict, f"{found} on this machine"))
    return verdicts
