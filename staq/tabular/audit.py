"""The audit: every statement of the paper, evaluated along runs on random MDPs with random errors.

Trial i of seed s is drawn from the generator of (s, i) alone, so any counterexample can be rerun by those two numbers.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial

import numpy as np

from staq.tabular import bounds
from staq.tabular.bounds import Sides
from staq.tabular.mdp import MDP, dirichlet, garnet, masked
from staq.tabular.mirror_descent import ErrorProcess, Run, Settings, run
from staq.tabular.operators import bellman, bellman_optimal, optimal_q, policy_of, q_of_policy

ITERATIONS = 25
TOLERANCE = 1e-9
"""What rounding may add, relative to the larger side (or to 1, where both are small)."""


@dataclass(frozen=True)
class Finding:
    """One statement on one trial."""

    statement: str
    ratio: float
    """The largest left/right as stated; for a right side of 0, 1 plus the largest left."""
    violated: bool
    violated_repaired: bool | None
    """None where nothing needed repair."""
    setting: str = ""
    """What of the trial was drawn anew for this statement."""


@dataclass
class Row:
    """One statement over all trials."""

    statement: str
    trials: int = 0
    violations_as_stated: int = 0
    violations_as_repaired: int | None = None
    worst_ratio: float = 0.0
    smallest_counterexample: str | None = None
    """Of the original statement, with the seed that reruns it."""


def audit(
    trials: int,
    seed: int,
    processes: int = 1,
    progress: Callable[[int], object] = lambda n: None,
    masks: bool = False,
) -> list[Row]:
    """Runs the trials and counts.

    :param masks: whether in every state some actions are forbidden
    """
    rows: dict[str, Row] = {}
    sizes: dict[str, int] = {}
    with _mapper(processes) as mapping:
        for i, (size, label, findings) in enumerate(mapping(partial(trial, seed, masks=masks), range(trials))):
            for finding in findings:
                row = rows.setdefault(finding.statement, Row(finding.statement))
                _count(row, finding)
                if finding.violated and size < sizes.get(finding.statement, size + 1):
                    sizes[finding.statement] = size
                    row.smallest_counterexample = (
                        f"{label}{finding.setting}: staq theory check --seed {seed} --only {i}{' --masks' * masks}"
                    )
            progress(1)
    return list(rows.values())


def trial(seed: int, index: int, masks: bool = False) -> tuple[int, str, list[Finding]]:
    """All statements on one random MDP: its size, its description, and what was found."""
    rng = np.random.default_rng([seed, index])
    tau = 10.0 ** rng.uniform(-2, 0)
    mdp = _random_mdp(rng, rng.uniform(0.3, 0.95))
    if masks:
        mdp = masked(mdp, _random_mask(np.random.default_rng([seed, index, 1]), *mdp.reward.shape))
    kind = str(rng.choice(["none", "random", "biased", "positive", "negative", "correlated"]))
    errors = partial(_errors, kind, mdp, 10.0 ** rng.uniform(-2, 1), int(rng.integers(2**31)))
    label = f"{mdp.n_states} states, {mdp.n_actions} actions, γ={mdp.discount:.2f}, τ={tau:.3f}, {kind} errors"
    findings = [*_operators(rng, mdp, tau), *_exact(rng, mdp, tau, errors), *_finite(rng, mdp, tau, errors)]
    return mdp.n_states * mdp.n_actions, label, findings


def as_json(rows: list[Row], trials: int, seed: int) -> dict[str, object]:
    """What ``staq theory check --json`` writes."""
    return {"trials": trials, "seed": seed, "statements": [asdict(row) for row in rows]}


# ---------------------------------------------------------------------- the statements, by what they need


def _operators(rng: np.random.Generator, mdp: MDP, tau: float) -> Iterator[Finding]:
    """The propositions of App. A, on random functions and a random policy."""
    f, g = (mdp.on_allowed(rng.normal(size=mdp.reward.shape) * 10) for _ in range(2))
    log_pi, gamma = policy_of(rng.normal(size=mdp.reward.shape) * 3, mdp.allowed), mdp.discount
    apart = bounds.norm(f - g)
    for name, operator in (
        ("Contraction of T^π", lambda x: bellman(mdp, log_pi, x, tau)),
        ("Contraction of T*", lambda x: bellman_optimal(mdp, x, tau)),
    ):
        yield _finding(name, [Sides(bounds.norm(operator(f) - operator(g)), gamma * apart)])
    higher = np.maximum(f, g)
    shortfall = float((bellman(mdp, log_pi, f, tau) - bellman(mdp, log_pi, higher, tau)).max())
    yield _finding("Monotonicity of T^π", [Sides(shortfall, 0.0)])
    q = q_of_policy(mdp, log_pi, tau)
    yield _finding("Q^π is the fixed point of T^π", [Sides(bounds.norm(bellman(mdp, log_pi, q, tau) - q), 0.0)])
    best = optimal_q(mdp, tau)
    yield _finding("Q* is the fixed point of T*", [Sides(bounds.norm(bellman_optimal(mdp, best, tau) - best), 0.0)])
    yield _finding("Q^π ≤ Q*", [Sides(float((q - best).max()), 0.0)])


def _exact(rng: np.random.Generator, mdp: MDP, tau: float, errors: ErrorProcess) -> Iterator[Finding]:
    """Secs. 4.1–4.3: all of the past is kept."""
    eta, optimal = 10.0 ** rng.uniform(np.log10(0.05), 1), optimal_q(mdp, tau)
    beta, gamma = eta / (eta + tau), mdp.discount
    k = int(rng.integers(1, 60))
    direct = sum(gamma**i * beta ** (k - i) for i in range(k + 1))
    yield _finding("Σγ^iβ^{k−i} in closed form", [Sides(abs(direct - bounds.geometric_sum(gamma, beta, k)), 0.0)])
    yield _finding("Σγ^iβ^{k−i} ≤ (k+1) max{γ, β}^k", [Sides(direct, (k + 1) * max(gamma, beta) ** k)])
    low, high = sorted((beta, gamma))  # the sum does not tell them apart
    yield _finding("Σγ^iβ^{k−i} ≤ β^{k+1}/(β−γ) for β > γ", [Sides(direct, high ** (k + 1) / (high - low))])

    value = run(mdp, Settings(tau, eta, "value"), ITERATIONS, errors)
    yield _finding("Lemma 4.1", bounds.lemma_4_1(value, optimal))
    yield _finding(
        "Theorem 4.2",
        bounds.theorem_4_2(value, optimal, repaired=False),
        bounds.theorem_4_2(value, optimal, repaired=True),
    )
    yield _finding("Identity behind Theorem 4.2", bounds.value_iteration_identity(value))
    updates = partial(_errors, "random", mdp, 10.0 ** rng.uniform(-2, 1), int(rng.integers(2**31)))
    inexact = run(mdp, Settings(tau, eta, "value"), ITERATIONS, errors, lambda k: updates(k) * (k > 0))
    yield _finding(
        "Theorem 4.2 with update errors",
        bounds.theorem_4_2(inexact, optimal, repaired=False),
        bounds.theorem_4_2(inexact, optimal, repaired=True),
    )
    some = np.random.default_rng(k).dirichlet(np.ones(mdp.n_states))
    yield _finding("Merging, largest KL to exact", bounds.merging(inexact))
    yield _finding("Merging, mean KL to exact", bounds.merging(inexact, some))
    policy = run(mdp, Settings(tau, eta, "policy"), ITERATIONS, errors)
    yield _finding("Lemma 4.3", bounds.lemma_4_3(policy, repaired=False), bounds.lemma_4_3(policy, repaired=True))
    shift = float(rng.normal() * 10)
    shifted = bounds.improvement_error(policy, 3, policy.errors[3] + shift)
    apart = bounds.norm(shifted - bounds.improvement_error(policy, 3, policy.errors[3]))
    yield _finding("ε_Δ does not see a shift of ε", [Sides(apart, 0.0)])
    repaired = bounds.theorem_4_4(policy, optimal, repaired=True)
    yield _finding("Theorem 4.4", bounds.theorem_4_4(policy, optimal, repaired=False), repaired)
    one_sided = [Sides(side.left, side.right - side.terms["other side"]) for side in repaired]
    yield _finding("Theorem 4.4 with only its sign corrected", one_sided, repaired)


def _finite(rng: np.random.Generator, mdp: MDP, tau: float, errors: ErrorProcess) -> Iterator[Finding]:
    """Sec. 5, at a memory just above the theorem's threshold: γ and β are drawn so that it is not too large."""
    gamma, beta = rng.uniform(0.1, 0.7), rng.uniform(0.05, 0.7)
    mdp = replace(mdp, discount=gamma)
    memory = bounds.minimum_memory(gamma, beta) + int(rng.integers(3))
    settings = Settings(tau, tau * beta / (1 - beta), "policy", memory)
    optimal, history = optimal_q(mdp, tau), run(mdp, settings, min(memory + 15, 50), errors)
    anew = f" (here γ={gamma:.2f}, β={beta:.2f}, M={memory})"
    yield _finding("Eq. 6 equals Eq. 2", _recursion(history, memory), setting=anew)
    yield _finding("Finite-memory improvement lemma", bounds.finite_memory_improvement(history), setting=anew)
    yield _finding(
        "Theorem 5.1",
        bounds.theorem_5_1(history, optimal, repaired=False),
        bounds.theorem_5_1(history, optimal, repaired=True),
        setting=anew,
    )


def _recursion(history: Run, memory: int) -> list[Sides]:
    """ξ_{k+1} = βξ_k + αq_k + αβ^M/(1−β^M)(q_k − q_{k−M})."""
    alpha, beta = history.settings.alpha, history.settings.beta
    sides = []
    for k, q in enumerate(history.q):
        oldest = history.q[k - memory] if k >= memory else np.zeros_like(q)
        recursive = beta * history.logits[k] + alpha * q + alpha * beta**memory / (1 - beta**memory) * (q - oldest)
        tau = history.settings.entropy_weight
        sides.append(Sides(tau * bounds.norm(history.logits[k + 1] - recursive), 0.0))
    return sides


# ---------------------------------------------------------------------- drawing and counting


def _random_mdp(rng: np.random.Generator, gamma: float) -> MDP:
    n_states, n_actions = int(rng.integers(1, 8)), int(rng.integers(2, 5))
    if rng.random() < 0.5:
        return dirichlet(n_states, n_actions, gamma, rng)
    mdp = garnet(n_states, n_actions, int(rng.integers(1, n_states + 1)), gamma, rng)
    return MDP(mdp.reward, mdp.transition.toarray(), gamma)


def _random_mask(rng: np.random.Generator, n_states: int, n_actions: int) -> np.ndarray:
    """Allows each action or not, and one of them in any case."""
    allowed = rng.random((n_states, n_actions)) < 0.5
    allowed[np.arange(n_states), rng.integers(n_actions, size=n_states)] = True
    return allowed


def _errors(kind: str, mdp: MDP, scale: float, seed: int, k: int) -> np.ndarray:
    """ε_k, a function of k alone, so that runs can share it."""
    return mdp.on_allowed(_drawn_errors(kind, mdp, scale, seed, k))


def _drawn_errors(kind: str, mdp: MDP, scale: float, seed: int, k: int) -> np.ndarray:
    noise = scale * np.random.default_rng([seed, k]).normal(size=mdp.reward.shape)
    if kind == "none":
        return np.zeros_like(noise)
    if kind == "positive":
        return np.abs(noise)
    if kind == "negative":
        return -np.abs(noise)
    if kind == "random":
        return noise
    constant = scale * np.random.default_rng(seed).normal(size=mdp.reward.shape)
    return constant + noise if kind == "biased" else constant * np.cos(k / 3) + 0.1 * noise


def _excess(side: Sides) -> float:
    return side.left - side.right - TOLERANCE * max(1.0, abs(side.right), abs(side.left))


def _finding(statement: str, sides: list[Sides], repaired: list[Sides] | None = None, setting: str = "") -> Finding:
    ratio = max(side.left / side.right if side.right > 0 else 1 + side.left for side in sides)
    return Finding(
        statement,
        float(ratio),
        any(_excess(side) > 0 for side in sides),
        None if repaired is None else any(_excess(side) > 0 for side in repaired),
        setting,
    )


def _count(row: Row, finding: Finding) -> None:
    row.trials += 1
    row.violations_as_stated += finding.violated
    row.worst_ratio = max(row.worst_ratio, finding.ratio)
    if finding.violated_repaired is not None:
        row.violations_as_repaired = (row.violations_as_repaired or 0) + finding.violated_repaired


class _mapper:
    """``map`` in this process or over several, in order."""

    def __init__(self, processes: int) -> None:
        # Spawned, not forked: the caller may have threads, which a fork does not survive.
        self.pool = multiprocessing.get_context("spawn").Pool(processes) if processes > 1 else None

    def __enter__(self) -> Callable[..., Iterator[tuple[int, str, list[Finding]]]]:
        return map if self.pool is None else partial(self.pool.imap, chunksize=20)

    def __exit__(self, *_: object) -> None:
        if self.pool is not None:
            self.pool.terminate()
            self.pool.join()
