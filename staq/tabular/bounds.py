"""Every statement of the paper as the two sides of an inequality along a run, as stated and as repaired.

A function returns one ``Sides`` per iteration: the statement says left ≤ right. "As stated" has plain typos mended
(docs/theory.md lists them). What is repaired and why is proved there; the repairs are one-line changes here, so that
one can be read beside the other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from scipy.optimize import brentq

from staq.tabular.mdp import MDP
from staq.tabular.mirror_descent import Evaluation, Run
from staq.tabular.operators import (
    bellman_optimal,
    discounted_sum,
    expectation,
    kl_divergence,
    policy_of,
    q_of_policy,
)


@dataclass(frozen=True)
class Sides:
    """left ≤ right, and what right is made of."""

    left: float
    right: float
    terms: dict[str, float] = field(default_factory=dict)


def norm(f: np.ndarray) -> float:
    """‖f‖_∞"""
    return float(np.abs(f).max())


def geometric_sum(gamma: float, beta: float, k: int) -> float:
    """Σ_{i=0}^k γ^i β^{k−i} in closed form (Sec. 4.1)."""
    if abs(gamma - beta) < 1e-6:  # the difference of powers cancels
        return float(sum(gamma**i * beta ** (k - i) for i in range(k + 1)))
    return float((beta ** (k + 1) - gamma ** (k + 1)) / (beta - gamma))


def reward_bound(mdp: MDP, entropy_weight: float) -> float:
    """R_m = R_x + γ τ ln|A| (Theorem 4.2)."""
    return norm(mdp.reward) + mdp.discount * entropy_weight * float(np.log(mdp.n_actions))


def distance(run: Run, optimal: np.ndarray, k: int) -> float:
    """‖Q* − τ ξ_k‖"""
    return norm(optimal - run.settings.entropy_weight * run.logits[k])


# ---------------------------------------------------------------------- merging (ours, docs/theory.md)


def merging(run: Run, weights: np.ndarray | None = None) -> list[Sides]:
    """KL(exact; merged) ≤ D²/8, with D the β-discounted sum of what each merge changes, in span.

    Merges are the run's update errors, and exact mirror descent is that of the run's own Q-functions.

    :param weights: of the states, by which both sides are means (of squares); None is for the largest
    """

    def size(spans_squared: np.ndarray) -> float:
        return float(spans_squared.max() if weights is None else weights @ spans_squared)

    alpha, beta = run.settings.alpha, run.settings.beta
    exact, distance, sides = np.zeros_like(run.logits[0]), 0.0, []
    for k, error in enumerate(run.update_errors):
        exact = beta * exact + alpha * run.q[k]
        distance = beta * distance + math.sqrt(size(np.ptp(error, axis=-1) ** 2))
        kl = kl_divergence(policy_of(exact, run.mdp.allowed), run.log_pi[k + 1])
        sides.append(Sides(size(kl), distance**2 / 8))
    return sides


# ---------------------------------------------------------------------- lemmas


def lemma_4_1(run: Run, optimal: np.ndarray) -> list[Sides]:
    """‖Q* − Q^k‖ ≤ 2 ‖Q* − τ ξ_k‖ / (1 − γ)."""
    tau, gamma = run.settings.entropy_weight, run.mdp.discount
    return [
        Sides(norm(optimal - q_of_policy(run.mdp, log_pi, tau)), 2 * distance(run, optimal, k) / (1 - gamma))
        for k, log_pi in enumerate(run.log_pi)
    ]


def improvement_error(run: Run, k: int, error: np.ndarray, sign: float = 1.0) -> np.ndarray:
    """ε_{Δ_k} = γ μ_{k+1} P (π_{k+1} − π_k) ε. The paper's Lemma 4.3 has the policies the other way round: sign −1."""
    change = expectation(run.log_pi[k + 1], error) - expectation(run.log_pi[k], error)
    return sign * run.mdp.discount * discounted_sum(run.mdp, run.log_pi[k + 1], run.mdp.expected(change))


def lemma_4_3(run: Run, repaired: bool) -> list[Sides]:
    """Q^{k+1} ≥ Q^k − ε_{Δ_k}: the largest shortfall against 0."""
    _check(run, "policy", finite=False)
    tau = run.settings.entropy_weight
    q = [q_of_policy(run.mdp, log_pi, tau) for log_pi in run.log_pi]
    sign = 1.0 if repaired else -1.0
    return [
        Sides(float((q[k] - improvement_error(run, k, error, sign) - q[k + 1]).max()), 0.0)
        for k, error in enumerate(run.errors)
    ]


def finite_memory_improvement(run: Run) -> list[Sides]:
    """The finite-memory improvement lemma (App. A): ε_k + Δ_k in place of ε_k."""
    _check(run, "policy", finite=True)
    tau, beta = run.settings.entropy_weight, run.settings.beta
    memory = _memory(run)
    q = [q_of_policy(run.mdp, log_pi, tau) for log_pi in run.log_pi]
    sides = []
    for k, error in enumerate(run.errors):
        oldest = run.q[k - memory] if k >= memory else np.zeros_like(error)
        delta = beta**memory / (1 - beta**memory) * (run.q[k] - oldest)
        sides.append(Sides(float((q[k] - improvement_error(run, k, error + delta) - q[k + 1]).max()), 0.0))
    return sides


# ---------------------------------------------------------------------- Theorem 4.2: value iteration


def theorem_4_2(run: Run, optimal: np.ndarray, repaired: bool) -> list[Sides]:
    """‖Q* − τξ_{k+1}‖ ≤ γ^{k+1}‖Q*‖ + R_m Σγ^iβ^{k−i} + Σγ^i‖E_{k−i}‖ (+ Σγ^i‖E'_{k−i}‖ for inexact updates).

    Repaired: E' with the factor that its definition has, and the Kullback–Leibler term that the proof drops, without
    which only Q* − τξ is bounded and not τξ − Q*.
    """
    _check(run, "value", finite=False, exact_updates=False)
    mdp, tau, beta, gamma = run.mdp, run.settings.entropy_weight, run.settings.beta, run.mdp.discount
    average = inexact = np.zeros_like(mdp.reward)
    kl_average = np.zeros(mdp.n_states)
    error_floor = update_floor = kl_floor = 0.0
    sides = []
    for k in range(len(run.q)):
        if k > 0:
            average = beta * average + (1 - beta) * run.errors[k]
            moved = gamma * mdp.expected(expectation(run.log_pi[k], run.update_errors[k - 1]))
            if repaired:
                inexact = beta * inexact + tau * (run.update_errors[k] - moved)
            else:
                inexact = beta * inexact + (1 - beta) * (run.update_errors[k] - moved / run.settings.alpha)
            kl_average = beta * kl_average + kl_divergence(run.log_pi[k], run.log_pi[k - 1])
        error_floor = gamma * error_floor + norm(average)
        update_floor = gamma * update_floor + norm(inexact)
        kl_floor = gamma * kl_floor + gamma * tau * beta * float(mdp.expected(kl_average).max())
        terms = {
            "contraction": gamma ** (k + 1) * norm(optimal),
            "transient": reward_bound(mdp, tau) * geometric_sum(gamma, beta, k),
            "evaluation errors": error_floor,
            "update errors": update_floor,
        }
        if repaired:
            terms["divergence"] = kl_floor
        sides.append(Sides(distance(run, optimal, k + 1), sum(terms.values()), terms))
    return sides


def value_iteration_identity(run: Run) -> list[Sides]:
    """τξ_{k+1} = T*τξ_k − β^k T*0 + E_k + γτβ P Σβ^{k−i} KL(π_i; π_{i−1}): the equality behind the repair."""
    _check(run, "value", finite=False)
    mdp, tau, beta = run.mdp, run.settings.entropy_weight, run.settings.beta
    average, kl_average = np.zeros_like(mdp.reward), np.zeros(mdp.n_states)
    at_zero = bellman_optimal(mdp, np.zeros_like(mdp.reward), tau)
    sides = []
    for k in range(len(run.q)):
        if k > 0:
            average = beta * average + (1 - beta) * run.errors[k]
            kl_average = beta * kl_average + kl_divergence(run.log_pi[k], run.log_pi[k - 1])
        right = bellman_optimal(mdp, tau * run.logits[k], tau) - beta**k * at_zero + average
        right = right + mdp.discount * tau * beta * mdp.expected(kl_average)
        sides.append(Sides(norm(tau * run.logits[k + 1] - right), 0.0))
    return sides


# ---------------------------------------------------------------------- Theorem 4.4: policy iteration


def theorem_4_4(run: Run, optimal: np.ndarray, repaired: bool) -> list[Sides]:
    """‖Q* − τξ_{k+1}‖ ≤ γ^{k+1}‖Q*‖ + (2−γ−β)/(1−γ) R_m Σγ^iβ^{k−i} + Σγ^i‖E_{k−i}‖.

    Repaired: the sign of ε_Δ, and the larger of this and what bounds the other side, τξ − Q*: since Q^k ≤ Q*, that is
    at most the positive part of the averaged errors, and β^{k+1}‖Q*‖.
    """
    _check(run, "policy", finite=False)
    mdp, tau, beta, gamma = run.mdp, run.settings.entropy_weight, run.settings.beta, run.mdp.discount
    propagated = plain = np.zeros_like(mdp.reward)
    floor = 0.0
    factor = (2 - gamma - beta) / (1 - gamma) * reward_bound(mdp, tau)
    sides = []
    for k, error in enumerate(run.errors):
        carried = np.zeros_like(error)
        if k > 0:
            previous = run.errors[k - 1]
            carried = previous + improvement_error(run, k - 1, previous, 1.0 if repaired else -1.0)
            carried = gamma * mdp.expected(expectation(run.log_pi[k], carried))
        propagated = beta * propagated + (1 - beta) * (error - carried)
        plain = beta * plain + (1 - beta) * error
        floor = gamma * floor + norm(propagated)
        terms = {
            "contraction": gamma ** (k + 1) * norm(optimal),
            "transient": factor * geometric_sum(gamma, beta, k),
            "evaluation errors": floor,
        }
        if repaired:
            other_side = beta ** (k + 1) * norm(optimal) + max(0.0, float(plain.max()))
            terms["other side"] = max(0.0, other_side - sum(terms.values()))  # what the larger of the two adds
        sides.append(Sides(distance(run, optimal, k + 1), sum(terms.values()), terms))
    return sides


# ---------------------------------------------------------------------- Theorem 5.1: finite memory


def memory_threshold(gamma: float, beta: float) -> float:
    """What M has to exceed in Theorem 5.1."""
    if beta == 0:
        return 0.0
    ratio = (1 - gamma) ** 3 / ((1 + gamma) * (1 - gamma) ** 2 + 4 * (gamma + gamma**2))
    return float(np.log(ratio) / np.log(beta))


def minimum_memory(gamma: float, beta: float) -> int:
    """The smallest M that Theorem 5.1 allows."""
    return max(1, int(np.floor(memory_threshold(gamma, beta))) + 1)


def memory_constants(gamma: float, beta: float, memory: int) -> tuple[float, float]:
    """γ_M = γ/(1 − β^M) and c of Theorem 5.1."""
    lost = beta**memory
    c = lost / (1 - lost) * (4 * (gamma + gamma**2) / (1 - gamma) ** 2 + gamma)
    return gamma / (1 - lost), c


def convergence_rate(gamma: float, beta: float, memory: int) -> float:
    """d_0: the root of d^{2M+1} − γ_M d^{2M} − c in (γ_M, 1)."""
    if memory < minimum_memory(gamma, beta):
        raise ValueError(
            f"M={memory} is below the theorem's threshold {memory_threshold(gamma, beta):.1f} for γ={gamma}, "
            f"β={beta}: it gives no rate there."
        )
    gamma_m, _ = memory_constants(gamma, beta, memory)
    if beta == 0 or gamma == 0:  # c = 0
        return gamma_m
    # In logarithms, since c and d^{2M} underflow: 2M ln d + ln(d − γ_M) = ln c.
    log_c = memory * np.log(beta) - np.log1p(-(beta**memory))
    log_c += np.log(4 * (gamma + gamma**2) / (1 - gamma) ** 2 + gamma)

    def excess(d: float) -> float:
        return float(2 * memory * np.log(d) + np.log(d - gamma_m) - log_c)

    lower = float(np.nextafter(gamma_m, 1.0))
    return lower if excess(lower) >= 0 else float(brentq(excess, lower, 1.0, xtol=1e-15))


def theorem_5_1(run: Run, optimal: np.ndarray, repaired: bool) -> list[Sides]:
    """‖Q* − τξ_{k+1}‖ ≤ d_0^{k+1}‖Q*‖ + Σγ_M^i (T_{k−i} + c T̄/(1−γ_M−c)).

    Repaired: T_k is at least the positive part of the truncated average of the errors (the other side), and there is a
    transient for the first M iterations, in which fewer than M functions exist; it decays at the same rate.
    """
    _check(run, "policy", finite=True)
    gamma, beta, memory = run.mdp.discount, run.settings.beta, _memory(run)
    gamma_m, c = memory_constants(gamma, beta, memory)
    rate, room = convergence_rate(gamma, beta, memory), 1 - gamma_m - c
    transient = _largest_transient(run, optimal, memory) if repaired else 0.0
    floor = geometric = worst = 0.0
    sides = []
    for k in range(len(run.q)):
        term = _error_term(run, k, memory)
        if repaired:
            average = _truncated(run, run.errors[: k + 1], memory)
            term = max(term, max(0.0, float(average.max())))
        worst = max(worst, term)
        floor = gamma_m * floor + term
        geometric = gamma_m * geometric + 1.0
        terms = {
            "contraction": rate ** (k + 1) * norm(optimal),
            "evaluation errors": floor,
            "worst error": geometric * c * worst / room,
        }
        if repaired:
            terms["transient"] = rate ** max(0, k + 1 - memory) * transient / room
        sides.append(Sides(distance(run, optimal, k + 1), sum(terms.values()), terms))
    return sides


def _check(run: Run, evaluation: Evaluation, finite: bool, exact_updates: bool = True) -> None:
    """A statement says nothing about runs of another kind, and its sides would be numbers without a meaning."""
    settings = run.settings
    if settings.evaluation != evaluation:
        raise ValueError(f"This statement is about {evaluation} iteration: the run is {settings.evaluation} iteration.")
    if finite == (settings.memory_size is None):
        kind = "a finite memory" if finite else "unlimited memory"
        raise ValueError(f"This statement is about {kind}: the run has memory_size={settings.memory_size}.")
    if settings.annealing is not None or not settings.weight_correction:
        raise ValueError("This statement is about a constant τ and corrected weights: the run has others.")
    if exact_updates and any(error.any() for error in run.update_errors):
        raise ValueError("This statement is about exact policy updates: the run has update errors.")


def _memory(run: Run) -> int:
    assert run.settings.memory_size is not None
    return run.settings.memory_size


def _truncated(run: Run, newest_last: list[np.ndarray], memory: int) -> np.ndarray:
    """(1−β)/(1−β^M) Σ_{i<M} β^i x_{k−i}; functions before the first are zero."""
    beta = run.settings.beta
    total = sum((beta**i * x for i, x in enumerate(reversed(newest_last[-memory:]))), np.zeros_like(run.mdp.reward))
    return (1 - beta) / (1 - beta**memory) * np.asarray(total)


def _propagated(run: Run, j: int, x: np.ndarray) -> np.ndarray:
    """A_j x with A_j = γ P π_j (I + γ μ_j P (π_j − π_{j−1}))."""
    inner = x + improvement_error(run, j - 1, x)
    return run.mdp.discount * run.mdp.expected(expectation(run.log_pi[j], inner))


def _error_term(run: Run, k: int, memory: int) -> float:
    """T_k; errors before the first are zero."""
    beta, zero = run.settings.beta, np.zeros_like(run.mdp.reward)

    def error(i: int) -> np.ndarray:
        return run.errors[i] if i >= 0 else zero

    direct, delayed = [], []
    for j in range(max(0, k - memory + 1), k + 1):
        direct.append(error(j) - (_propagated(run, j, error(j - 1)) if j > 0 else zero))
        delayed.append(_propagated(run, j, error(j - 1) - error(j - 1 - memory)) if j > 0 else zero)
    weight = beta**memory / (1 - beta**memory)
    return norm(_truncated(run, direct, memory)) + weight * norm(_truncated(run, delayed, memory))


def _largest_transient(run: Run, optimal: np.ndarray, memory: int) -> float:
    """The largest term that the missing functions of the first M iterations add, on either side."""
    mdp, tau, beta = run.mdp, run.settings.entropy_weight, run.settings.beta
    at_zero = bellman_optimal(mdp, np.zeros_like(mdp.reward), tau)
    first = norm(at_zero - q_of_policy(mdp, run.log_pi[0], tau))
    largest = 0.0
    for k in range(memory):
        missing = (beta ** (k + 1) - beta**memory) / (1 - beta**memory)
        below = (1 - beta) / (1 - beta**memory) * beta**k * first + missing * norm(at_zero)
        above = missing * norm(optimal)
        largest = max(largest, below, above)
    return largest
