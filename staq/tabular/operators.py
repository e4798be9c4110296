"""Entropy-regularised Bellman operators and their fixed points (Sec. 3 and App. A)."""

from __future__ import annotations

import numpy as np
from scipy import sparse
from scipy.sparse import linalg
from scipy.special import log_softmax, logsumexp

from staq.tabular.mdp import MDP

# Above this many states a dense solve costs more memory and time than an iteration.
DENSE_STATES = 600


FORBIDDEN = -1e30
"""log π of what is not allowed: finite, since 0 · log 0 must be 0."""


def policy_of(logits: np.ndarray, allowed: np.ndarray | None = None) -> np.ndarray:
    """log π of π ∝ exp(ξ), over the actions that are allowed. [S, A] → [S, A]"""
    return np.asarray(log_softmax(logits if allowed is None else np.where(allowed, logits, FORBIDDEN), axis=-1))


def entropy(log_pi: np.ndarray) -> np.ndarray:
    """H(π) = −h(π). [S, A] → [S]"""
    return -(np.exp(log_pi) * log_pi).sum(-1)


def kl_divergence(log_p: np.ndarray, log_q: np.ndarray) -> np.ndarray:
    """KL(p; q) = p · (log p − log q). [S, A] → [S]"""
    return (np.exp(log_p) * (log_p - log_q)).sum(-1)


def expectation(log_pi: np.ndarray, f: np.ndarray) -> np.ndarray:
    """π f. [S, A] → [S]"""
    return (np.exp(log_pi) * f).sum(-1)


def soft_value(q: np.ndarray, log_pi: np.ndarray, entropy_weight: float) -> np.ndarray:
    """π q − τ h(π). [S, A] → [S]"""
    return expectation(log_pi, q) + entropy_weight * entropy(log_pi)


def bellman(mdp: MDP, log_pi: np.ndarray, f: np.ndarray, entropy_weight: float) -> np.ndarray:
    """T_τ^π f = R + γ P (π f − τ h(π))."""
    return mdp.reward + mdp.discount * mdp.expected(soft_value(f, log_pi, entropy_weight))


def bellman_optimal(mdp: MDP, f: np.ndarray, entropy_weight: float) -> np.ndarray:
    """T_τ^* f = R + γ P max_p (p f − τ h(p)): the maximum is τ log Σ exp(f/τ)."""
    best = entropy_weight * logsumexp(f / entropy_weight, axis=-1, b=mdp.allowed)
    return mdp.reward + mdp.discount * mdp.expected(best)


def discounted_sum(mdp: MDP, log_pi: np.ndarray, f: np.ndarray) -> np.ndarray:
    """μ f with μ = (I − γ P π)^{-1}: f summed along the policy's discounted path. [S, A] → [S, A]"""
    # y = f + γ P (π y), and w = π y solves a system over states alone.
    w = _solve(mdp, log_pi, expectation(log_pi, f))
    return f + mdp.discount * mdp.expected(w)


def q_of_policy(mdp: MDP, log_pi: np.ndarray, entropy_weight: float) -> np.ndarray:
    """Q_τ^π, the fixed point of T_τ^π: R + γ P V with (I − γ P_π) V = π R − τ h(π)."""
    value = _solve(mdp, log_pi, soft_value(mdp.reward, log_pi, entropy_weight))
    return mdp.reward + mdp.discount * mdp.expected(value)


def optimal_q(mdp: MDP, entropy_weight: float, tolerance: float = 1e-12, max_iterations: int = 1000) -> np.ndarray:
    """Q_τ^* by soft policy iteration, until its distance to the fixed point is below the tolerance, or rounding's."""
    q, best, since_best = np.zeros_like(mdp.reward), np.inf, 0
    for _ in range(max_iterations):
        q = q_of_policy(mdp, policy_of(q / entropy_weight, mdp.allowed), entropy_weight)
        residual = np.abs(bellman_optimal(mdp, q, entropy_weight) - q).max()
        if residual <= max(tolerance * (1 - mdp.discount), 4 * np.finfo(float).eps * np.abs(q).max()):
            return q
        best, since_best = min(best, residual), 0 if residual < best else since_best + 1
        if since_best == 5 and residual <= 1e-10 * max(1.0, np.abs(q).max()):
            return q  # as near as a large system, which is solved by iteration, comes
    raise RuntimeError(f"Q* was not reached in {max_iterations} policy iterations: the residual is {residual:.1e}.")


def _solve(mdp: MDP, log_pi: np.ndarray, right: np.ndarray) -> np.ndarray:
    """(I − γ P_π)^{-1} right, over states."""
    pi = np.exp(log_pi)
    if not sparse.issparse(mdp.transition):
        step = np.einsum("sa,sat->st", pi, mdp.transition.reshape(*mdp.reward.shape, -1))
        return np.linalg.solve(np.eye(mdp.n_states) - mdp.discount * step, right)
    rows = np.repeat(np.arange(mdp.n_states), mdp.n_actions)
    average = sparse.csr_array((pi.ravel(), (rows, np.arange(rows.size))), shape=(mdp.n_states, rows.size))
    system = sparse.eye_array(mdp.n_states, format="csr") - mdp.discount * (average @ mdp.transition)
    if mdp.n_states <= DENSE_STATES:
        return np.linalg.solve(system.toarray(), right)
    # A random graph fills up under elimination, so a large system is iterated.
    solution, failed = linalg.bicgstab(system, right, rtol=1e-14, atol=0.0, maxiter=5000)
    residual = np.abs(system @ solution - right).max()
    if failed and residual > 1e-10 * max(1.0, np.abs(right).max()):
        raise RuntimeError(f"The linear system of a policy's value did not converge (residual {residual:.1e}).")
    return np.asarray(solution)
