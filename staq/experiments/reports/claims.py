"""The paper's claims against an experiment's results: confirmed, refuted, or not decidable at this budget."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from staq.experiments.plans import Experiment
from staq.experiments.reports.scores import Results, can_be_normalised, normalised
from staq.experiments.reports.statistics import Estimate, mean_interval
from staq.experiments.timing import INTERVAL

CONFIRMED, REFUTED, OPEN = "confirmed", "refuted", "not decidable at this budget"
OPEN_TIMES = "not decidable by these rounds"
CLOSE = 0.1
"""Returns that differ by less than this share of what the second gained over a uniform policy are called the same."""
LEARNED = 0.05
"""Normalised return below which there is nothing yet to be the same as."""
ENOUGH_SEEDS = 3
ENOUGH_STEPS = 0.5
"""Of the experiment's: before that no algorithm has shown what it can."""
WINDOW = 1_000_000
"""Steps before and after a deletion that are compared."""
FIRST_DELETION = 300 * INTERVAL
"""Of M = 300, in steps."""
UNIFORM, BEST = "a uniform policy", "the best of the paper's Table 1"
FIXED = {UNIFORM: 0.0, BEST: 1.0}
"""Normalised returns that take no run."""
ACTORS = ("AC-NoKL", "AC-MProj", "AC-DirectOpt")
BASELINES = ("DQN", "M-DQN", "PPO", "TRPO")
BUT_MOUNTAINCAR = (
    *("CartPole-v1", "Acrobot-v1", "LunarLander-v3"),
    *(f"MinAtar/{game}-v1" for game in ("Asterix", "Breakout", "Freeway", "Seaquest", "SpaceInvaders")),
)
WITH_ACTORS = ("MinAtar/Breakout-v1", "MinAtar/SpaceInvaders-v1")
"""Where the experiment on λ-returns has all of the paper's policy updates."""


@dataclass(frozen=True)
class Verdict:
    """What the results say of one claim."""

    claim: str
    verdict: str
    because: str


@dataclass(frozen=True)
class Claim:
    """Of two variants: ``a`` is ``above`` b, or hardly lower (``reaches``), or at about the ``same`` return."""

    text: str
    a: str
    relation: str
    b: str
    environments: tuple[str, ...] = ()
    """Where; in all of the experiment, if none is named."""
    memory: int = 0
    """The smallest M that has to have deleted for half of the run, since the claim is about what deletion does."""
    one_by_one: bool = False
    """Has to hold in each environment rather than on average."""
    around: int = 0
    """If not 0: steps, around which ``a`` is taken over the ``WINDOW`` that follows and ``b`` over the one before."""


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
        above("at a small budget too, performance grows with M: 10 above 1", "StaQ M=10", "StaQ M=1", 1),
        above("at a small budget too, performance grows with M: 30 above 10", "StaQ M=30", "StaQ M=10", 10),
        Claim("at a small budget M = 30 is exact mirror descent", "StaQ M=30", "same", "Exact PMD", (), 30, True),
        above("at a small budget too, AC-MProj lies above M = 1", "AC-MProj", "StaQ M=1", 1),
    ],
    "lambda": [
        Claim("on λ-returns M = 50 is virtually exact mirror descent", "StaQ M=50", "same", "Exact PMD", (), 50, True),
        Claim("M = 100 matches it", "StaQ M=100", "same", "Exact PMD", WITH_ACTORS, 100),
        above("on λ-returns, performance grows with M: 30 above 1", "StaQ M=30", "StaQ M=1", 1),
        above("on λ-returns, performance grows with M: 50 above 1", "StaQ M=50", "StaQ M=1", 1),
        above("on λ-returns, performance grows with M: exact above 1", "Exact PMD", "StaQ M=1", 1),
        *(above(f"{actor} lies above M = 1", actor, "StaQ M=1", 1, WITH_ACTORS) for actor in ACTORS[1:]),
        *(above(f"{actor} lies below M = 50", "StaQ M=50", actor, 50, WITH_ACTORS) for actor in ACTORS[1:]),
        above("AC-NoKL lies below M = 1", "StaQ M=1", "AC-NoKL", 1, WITH_ACTORS),
        above("M = 50 lies above NatGrad", "StaQ M=50", "NatGrad", 50, WITH_ACTORS),
    ],
    "deep-rl": [
        Claim(
            f"StaQ reaches {baseline} everywhere but on MountainCar",
            "StaQ M=300",
            "reaches",
            baseline,
            BUT_MOUNTAINCAR,
            one_by_one=True,
        )
        for baseline in (*BASELINES, "NatGrad")
    ]
    + [
        Claim(
            "the first deletion has no visible impact",
            *("StaQ M=300", "reaches", "StaQ M=300"),
            environments=BUT_MOUNTAINCAR,
            one_by_one=True,
            around=FIRST_DELETION,
        )
    ],
    "mountaincar": [
        Claim("sticky StaQ solves MountainCar", "StaQ sticky", "reaches", BEST),
        *(Claim(f"sticky StaQ reaches {baseline}", "StaQ sticky", "reaches", baseline) for baseline in BASELINES),
        Claim("softmax StaQ fails to learn", "StaQ softmax", "same", UNIFORM),
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
            Claim(
                f"M = 300 stays close to exact everywhere at ε = {e}",
                *(f"StaQ M=300 ε={e}", "same", f"Exact PMD ε={e}"),
                memory=300,
                one_by_one=True,
            )
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


def judged(experiment: Experiment, found: Results, timesteps: int) -> list[Verdict]:
    """Every claim that an experiment bears on, at so many steps of its own."""
    return [_judged(claim, experiment, found, timesteps) for claim in CLAIMS.get(experiment.name, [])]


def _judged(claim: Claim, experiment: Experiment, found: Results, timesteps: int) -> Verdict:
    needed = max(
        ENOUGH_STEPS * experiment.timesteps, 2 * claim.memory * INTERVAL, (claim.around and claim.around + WINDOW)
    )
    if timesteps < needed:
        return Verdict(claim.text, OPEN, f"{timesteps:,} steps, and it takes {needed:,.0f} at least")
    asked_of = claim.environments or experiment.environments
    pairs = {env: _pairs(claim, found, env) for env in asked_of if env in found}
    pairs = {env: by_seed for env, by_seed in pairs.items() if len(by_seed) >= ENOUGH_SEEDS}
    environments = list(pairs)
    if not environments:
        shared = f"{claim.a} and {claim.b} share {ENOUGH_SEEDS} finished seeds on none of {', '.join(asked_of)}"
        return Verdict(claim.text, OPEN, shared)
    if not claim.one_by_one:
        seeds = sorted(set.intersection(*(set(by_seed) for by_seed in pairs.values())))
        if len(seeds) < ENOUGH_SEEDS:
            return Verdict(claim.text, OPEN, f"fewer than {ENOUGH_SEEDS} seeds are finished everywhere")
        means = {seed: np.mean([by_seed[seed] for by_seed in pairs.values()], axis=0) for seed in seeds}
        pairs = {" and ".join(pairs): means}
    cases = {where: Case.of(claim, np.array(list(by_seed.values()))) for where, by_seed in pairs.items()}
    verdicts = {where: RELATIONS[claim.relation](case) for where, case in cases.items()}
    telling = next((v for v in (REFUTED, OPEN) if v in verdicts.values()), CONFIRMED)
    shown = [f"{cases[where]} ({where})" for where, verdict in verdicts.items() if verdict == telling]
    when = (
        f"{WINDOW:,} steps after {claim.around:,} less as many before"
        if claim.around
        else f"over the second half of {timesteps:,} steps"
    )
    because = f"{claim.a} − {claim.b}: {'; '.join(shown)}, {when}"
    part = telling != OPEN and len(environments) < len(asked_of)
    share = f" on {len(environments)} of {len(asked_of)} environments" if part else ""
    return Verdict(claim.text, telling + share, because)


def _pairs(claim: Claim, found: Results, env: str) -> dict[int, np.ndarray]:
    """By seed that both have finished, the returns of a and b, normalised where they can be.

    Means over the second half of the runs, the one in which a memory that a claim is about is full: the last evaluation
    may be luck, and at a ceiling all policies look the same in it.
    """

    def means(name: str, begin: int) -> dict[int, float]:
        if name not in found[env]:
            return {}
        curves = found[env][name]
        returns = curves.between(begin, begin + WINDOW) if claim.around else curves.second_half
        if can_be_normalised(env):
            returns = {seed: float(normalised(np.array(value), env)) for seed, value in returns.items()}
        return returns

    a = means(claim.a, claim.around)
    b = dict.fromkeys(a, FIXED[claim.b]) if claim.b in FIXED else means(claim.b, claim.around - WINDOW)
    return {seed: np.array([a[seed], b[seed]]) for seed in sorted(a.keys() & b.keys())}


@dataclass(frozen=True)
class Case:
    """a − b over seeds, and what difference still counts as none; None where b has nothing to compare with."""

    difference: Estimate
    margin: float | None

    @classmethod
    def of(cls, claim: Claim, pairs: np.ndarray) -> Case:
        """Of the normalised returns [seeds, a and b]."""
        difference, level = mean_interval(pairs[:, 0] - pairs[:, 1]), mean_interval(pairs[:, 1])
        if claim.b in FIXED:
            return cls(difference, CLOSE)
        if claim.relation == "above":
            return cls(difference, 0.0)
        assert level.low is not None
        # Two policies that have learned nothing yet are the same, and say nothing about what they will learn.
        return cls(difference, CLOSE * level.value if level.low > LEARNED else None)

    def __str__(self) -> str:
        unlearned = " where the interval of the latter reaches down to a uniform policy" if self.margin is None else ""
        return f"{self.difference}{unlearned}"

    @property
    def bounds(self) -> tuple[float, float]:
        assert self.difference.low is not None
        assert self.difference.high is not None
        return self.difference.low, self.difference.high


def _is_above(case: Case) -> str:
    low, high = case.bounds
    return CONFIRMED if low > 0 else REFUTED if high < 0 else OPEN


def _reaches(case: Case) -> str:
    low, high = case.bounds
    if case.margin is None:
        return CONFIRMED if low > 0 else OPEN
    return CONFIRMED if low > -case.margin else REFUTED if high < -case.margin else OPEN


def _is_the_same(case: Case) -> str:
    low, high = case.bounds
    if case.margin is None:
        return OPEN
    inside, outside = -case.margin < low and high < case.margin, low > case.margin or high < -case.margin
    return CONFIRMED if inside else REFUTED if outside else OPEN


RELATIONS = {"above": _is_above, "reaches": _reaches, "same": _is_the_same}


def judged_random_policy(counts: dict[str, tuple[int, int, int]], paper_timesteps: int) -> list[Verdict]:
    """The paper's claim about a uniform policy, given (steps, episodes that reached the goal, all) by sticky rate."""
    if "none" not in counts:
        return []
    steps, reached, episodes = counts["none"]
    verdict = REFUTED if reached else CONFIRMED if steps >= paper_timesteps else OPEN
    because = f"{reached} of {episodes:,} episodes in {steps:,} steps"
    return [Verdict("a uniform policy never reaches the goal in 5M steps", verdict, because)]


def judged_times(ratios: Mapping[tuple[str, str], Estimate]) -> list[Verdict]:
    """The paper's claims about time, given that of one variant over another's."""
    claims = {(actor, "StaQ M=1"): ("takes 35 to 45 % longer than", 1.35, 1.45) for actor in ACTORS}
    claims |= {(actor, "StaQ M=300"): ("takes longer than", 1.0, np.inf) for actor in ACTORS}
    # Words of Fig. 1's caption, and its numbers: 10.5 and 5.8 hours to 9.6.
    claims["StaQ M=300", "StaQ M=1"] = ("takes marginally (at most 10 %) longer than", 0.0, 1.1)
    claims["DQN", "StaQ M=1"] = ("is about 65 % (at least 50 %) faster than", 0.0, 1 / 1.5)
    verdicts = []
    for (name, unit), (words, low, high) in claims.items():
        claim, found = f"{name} {words} {unit}", ratios.get((name, unit))
        if found is None or found.low is None or found.high is None:
            verdicts.append(Verdict(claim, OPEN_TIMES, "both were not timed in two rounds yet"))
            continue
        inside, outside = low <= found.low and found.high <= high, found.low > high or found.high < low
        verdict = CONFIRMED if inside else REFUTED if outside else OPEN_TIMES
        verdicts.append(Verdict(claim, verdict, f"{found} times as long, on this machine"))
    return verdicts
