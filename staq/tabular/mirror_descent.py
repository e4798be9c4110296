"""Entropy-regularised mirror descent on a finite MDP: Secs. 4.1, 4.2, 4.3 and 5, with errors injected at will."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from staq.policy_improvement.mirror_descent import StepSize, memory_correction, pushed_weights
from staq.tabular.mdp import MDP
from staq.tabular.operators import bellman, policy_of, q_of_policy

ErrorProcess = Callable[[int], np.ndarray]
"""The error of iteration k, [S, A]."""
Evaluation = Literal["value", "policy"]


@dataclass(frozen=True)
class Settings(StepSize):
    """One algorithm: its regularisation weights τ and η, what it evaluates, what it remembers."""

    evaluation: Evaluation = "policy"
    """"value": q_{k+1} = T_τ^{k+1} q_k + ε (Sec. 4.1); "policy": q_k = Q_τ^k + ε (Sec. 4.2)."""
    memory_size: int | None = None
    """M of Sec. 5; None is exact mirror descent."""
    weight_correction: bool = True
    """The factor 1/(1 − β^M) of Eq. 2."""
    annealing: Callable[[int], float] | None = None
    """τ_k of iteration k; None keeps τ constant."""

    def __post_init__(self) -> None:
        if self.entropy_weight <= 0 or self.kl_weight < 0:
            raise ValueError(
                f"entropy_weight={self.entropy_weight} must be positive and kl_weight={self.kl_weight} not negative."
            )
        if self.memory_size is not None and self.memory_size < 1:
            raise ValueError(f"memory_size={self.memory_size}: it must be at least 1, or None.")

    def step_size(self, k: int) -> StepSize:
        """τ_k and η."""
        return self if self.annealing is None else StepSize(self.annealing(k), self.kl_weight)


@dataclass
class Run:
    """Everything that happened, indexed as in the paper."""

    mdp: MDP
    settings: Settings
    logits: list[np.ndarray] = field(default_factory=list)
    """ξ_0 = 0, ξ_1, …, ξ_{K+1}"""
    log_pi: list[np.ndarray] = field(default_factory=list)
    """log π_0, …, log π_{K+1}"""
    q: list[np.ndarray] = field(default_factory=list)
    """q_0, …, q_K"""
    errors: list[np.ndarray] = field(default_factory=list)
    """ε_0, …, ε_K"""
    update_errors: list[np.ndarray] = field(default_factory=list)
    """ε'_0, …, ε'_K of an inexact policy update (Sec. 4.3)"""
    weights: list[float] = field(default_factory=list)
    """Of the q-functions in memory, oldest first"""


def no_error(mdp: MDP) -> ErrorProcess:
    """Exact evaluation, or an exact update."""
    return lambda k: np.zeros_like(mdp.reward)


def run(
    mdp: MDP,
    settings: Settings,
    iterations: int,
    errors: ErrorProcess | None = None,
    update_errors: ErrorProcess | None = None,
) -> Run:
    """``iterations`` evaluations and policy updates from the uniform policy."""
    errors = errors or no_error(mdp)
    update_errors = update_errors or no_error(mdp)
    zero = np.zeros_like(mdp.reward)
    history = Run(mdp, settings, logits=[zero], log_pi=[policy_of(zero, mdp.allowed)])
    for k in range(iterations):
        _evaluate(history, k, errors(k))
        history.update_errors.append(update_errors(k))
        history.logits.append(_improved(history, k) + history.update_errors[k])
        history.log_pi.append(policy_of(history.logits[-1], mdp.allowed))
    return history


def _evaluate(history: Run, k: int, error: np.ndarray) -> None:
    mdp, tau, log_pi = history.mdp, history.settings.step_size(k).entropy_weight, history.log_pi[k]
    if history.settings.evaluation == "policy":
        q = q_of_policy(mdp, log_pi, tau) + error
    elif k == 0:  # q_0 = 0 by definition, without an error
        q, error = np.zeros_like(mdp.reward), np.zeros_like(mdp.reward)
    else:
        q = bellman(mdp, log_pi, history.q[k - 1], tau) + error
    history.q.append(q)
    history.errors.append(error)


def _improved(history: Run, k: int) -> np.ndarray:
    """ξ_{k+1}: Eq. 5 without a limit of memory, Eq. 2 with one. Each q_i keeps the α_i that it came with."""
    settings, step = history.settings, history.settings.step_size(k)
    if settings.memory_size is None:
        return step.beta * history.logits[-1] + step.alpha * history.q[-1]
    history.weights, _ = pushed_weights(history.weights, step.beta, step.alpha, settings.memory_size)
    correction = memory_correction(step.beta, settings.memory_size) if settings.weight_correction else 1.0
    remembered = history.q[-len(history.weights) :]
    return np.asarray(correction * sum(w * q for w, q in zip(history.weights, remembered, strict=True)))
