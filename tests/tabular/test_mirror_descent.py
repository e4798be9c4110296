"""The algorithms themselves: annealing, and updates with an error of their own."""

from __future__ import annotations

import numpy as np
import pytest

from staq.tabular.bounds import distance, norm
from staq.tabular.mdp import dirichlet
from staq.tabular.mirror_descent import Settings, run
from staq.tabular.operators import optimal_q, policy_of, q_of_policy

MDP = dirichlet(6, 3, 0.8, np.random.default_rng(0))


def falling(k: int) -> float:
    return max(0.1, 1.0 - 0.05 * k)


@pytest.mark.parametrize("memory_size", [None, 4])
def test_a_constant_schedule_is_no_schedule(memory_size: int | None) -> None:
    constant = run(MDP, Settings(0.3, 0.5, memory_size=memory_size), 12)
    scheduled = run(MDP, Settings(0.3, 0.5, memory_size=memory_size, annealing=lambda k: 0.3), 12)
    for a, b in zip(constant.logits, scheduled.logits, strict=True):
        np.testing.assert_array_equal(a, b)


def test_annealed_policies_maximise_the_objective_of_their_iteration() -> None:
    """π_{k+1} ∝ π_k^{β_k} exp(α_k q_k), with q_k the soft value under τ_k (Eq. 4)."""
    history = run(MDP, Settings(1.0, 0.5, annealing=falling), 10)
    for k in range(10):
        tau, eta = falling(k), 0.5
        np.testing.assert_allclose(history.q[k], q_of_policy(MDP, history.log_pi[k], tau), atol=1e-12)
        expected = policy_of((eta * history.log_pi[k] + history.q[k]) / (eta + tau))
        np.testing.assert_allclose(history.log_pi[k + 1], expected, atol=1e-10)


@pytest.mark.parametrize("memory_size", [None, 60])
def test_annealing_ends_at_the_optimum_of_the_final_weight(memory_size: int | None) -> None:
    history = run(MDP, Settings(1.0, 0.1, memory_size=memory_size, annealing=falling), 400)
    optimal = optimal_q(MDP, 0.1)
    assert norm(optimal - 0.1 * history.logits[-1]) < 1e-9
    assert norm(optimal - history.q[-1]) < 1e-9


def test_annealed_memory_keeps_the_weights_that_it_was_given() -> None:
    """By hand for M = 2: ξ_3 = (β_2 α_1 q_1 + α_2 q_2) / (1 − β_2²)."""
    settings = Settings(1.0, 0.5, memory_size=2, annealing=lambda k: 1.0 / (k + 1))
    history = run(MDP, settings, 3)
    alpha = [1 / (0.5 + 1 / (k + 1)) for k in range(3)]
    beta = 0.5 * alpha[2]
    expected = (beta * alpha[1] * history.q[1] + alpha[2] * history.q[2]) / (1 - beta**2)
    np.testing.assert_allclose(history.logits[3], expected, atol=1e-12)


def test_update_errors_leave_a_floor_in_proportion() -> None:
    """Sec. 4.3: with exact evaluation only an exact update converges."""
    optimal, rng = optimal_q(MDP, 0.1), np.random.default_rng(1)
    noise = [rng.uniform(-1, 1, size=MDP.reward.shape) for _ in range(300)]
    floors = []
    for scale in (0.0, 0.01, 0.1):
        history = run(MDP, Settings(0.1, 0.2), 300, update_errors=lambda k, scale=scale: scale * noise[k])  # type: ignore[misc]
        floors.append(np.mean([distance(history, optimal, k) for k in range(200, 301)]))
    assert floors[0] < 1e-10
    assert floors[2] == pytest.approx(10 * floors[1], rel=0.2)
