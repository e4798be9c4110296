"""Exact operators: by hand, by a linear solve, by iteration, and against known games."""

from __future__ import annotations

import math
import subprocess
import sys
import time
import tracemalloc

import gymnasium
import numpy as np
import pytest
from scipy import sparse

from staq.tabular.mdp import MDP, dirichlet, from_toy_text, garnet
from staq.tabular.operators import (
    bellman,
    bellman_optimal,
    discounted_sum,
    entropy,
    kl_divergence,
    optimal_q,
    policy_of,
    q_of_policy,
)

# One state, two actions with rewards 1 and 0, γ = 1/2: everything has a closed form.
COIN = MDP(np.array([[1.0, 0.0]]), np.ones((2, 1)), 0.5)
UNIFORM = policy_of(np.zeros((1, 2)))


def test_operators_by_hand() -> None:
    """T^π f = R + ½(½·(4 + 2) + τ ln 2) with f = (4, 2), τ = 0.1."""
    f = np.array([[4.0, 2.0]])
    step = 0.5 * (3.0 + 0.1 * math.log(2))
    np.testing.assert_allclose(bellman(COIN, UNIFORM, f, 0.1), [[1 + step, step]])
    best = 0.5 * 0.1 * math.log(math.exp(40) + math.exp(20))
    np.testing.assert_allclose(bellman_optimal(COIN, f, 0.1), [[1 + best, best]])


def test_value_of_the_uniform_policy_by_hand() -> None:
    """V = ½ + τ ln 2 + ½V."""
    value = 2 * (0.5 + 0.1 * math.log(2))
    np.testing.assert_allclose(q_of_policy(COIN, UNIFORM, 0.1), [[1 + value / 2, value / 2]])


def test_optimal_value_by_hand() -> None:
    """V* = τ ln(exp((1 + ½V*)/τ) + exp(½V*/τ)) = ½V* + τ ln(1 + e^{1/τ})."""
    value = 2 * 0.5 * math.log(1 + math.exp(2))
    np.testing.assert_allclose(optimal_q(COIN, 0.5), [[1 + value / 2, value / 2]], rtol=1e-12)


def test_entropy_divergence_and_sums_by_hand() -> None:
    assert entropy(UNIFORM)[0] == pytest.approx(math.log(2))
    other = np.log(np.array([[0.25, 0.75]]))
    assert kl_divergence(UNIFORM, other)[0] == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(2 / 3))
    # μ f = f + ½(½·(2 + 4)) + ¼·3 + … = f + 3
    np.testing.assert_allclose(discounted_sum(COIN, UNIFORM, np.array([[2.0, 4.0]])), [[5.0, 7.0]])


@pytest.mark.parametrize("seed", range(5))
def test_solve_and_iteration_agree(seed: int) -> None:
    rng = np.random.default_rng(seed)
    mdp, tau = dirichlet(6, 3, 0.9, rng), 0.2
    log_pi = policy_of(rng.normal(size=(6, 3)))
    q = best = np.zeros((6, 3))
    for _ in range(400):
        q, best = bellman(mdp, log_pi, q, tau), bellman_optimal(mdp, best, tau)
    np.testing.assert_allclose(q_of_policy(mdp, log_pi, tau), q, atol=1e-10)
    np.testing.assert_allclose(optimal_q(mdp, tau), best, atol=1e-10)
    pi = np.zeros((6, 18))
    for s in range(6):
        pi[s, 3 * s : 3 * s + 3] = np.exp(log_pi[s])
    mu = np.linalg.inv(np.eye(18) - 0.9 * mdp.transition @ pi)
    f = rng.normal(size=(6, 3))
    np.testing.assert_allclose(discounted_sum(mdp, log_pi, f), (mu @ f.ravel()).reshape(6, 3), atol=1e-10)


def test_sparse_and_dense_agree() -> None:
    rng = np.random.default_rng(0)
    large = garnet(800, 3, 4, 0.95, rng)
    dense = MDP(large.reward, large.transition.toarray(), 0.95)
    np.testing.assert_allclose(optimal_q(large, 0.1, 1e-10), optimal_q(dense, 0.1, 1e-10), atol=1e-9)


def unregularised(mdp: MDP) -> np.ndarray:
    q = np.zeros_like(mdp.reward)
    for _ in range(5000):
        q = mdp.reward + mdp.discount * mdp.expected(q.max(-1))
    return q


@pytest.mark.parametrize(
    "make",
    [
        lambda: gymnasium.make("FrozenLake-v1"),
        lambda: gymnasium.make("Taxi-v4" if "Taxi-v4" in gymnasium.registry else "Taxi-v3"),
        lambda: gymnasium.make("CliffWalking-v1" if "CliffWalking-v1" in gymnasium.registry else "CliffWalking-v0"),
    ],
    ids=["FrozenLake", "Taxi", "CliffWalking"],
)
def test_toy_text_values_are_recovered_as_tau_vanishes(make: object) -> None:
    """|Q*_τ − Q*_0| ≤ γ τ ln|A|/(1−γ), so τ = 1e-9 must agree to 1e-6."""
    mdp = from_toy_text(make(), 0.95)  # type: ignore[operator]
    np.testing.assert_allclose(optimal_q(mdp, 1e-9, 1e-9), unregularised(mdp), atol=1e-6)


def test_frozen_lake_by_its_known_value() -> None:
    """On the lake without slipping, the goal is six steps away: γ⁵ from the start."""
    mdp = from_toy_text(gymnasium.make("FrozenLake-v1", is_slippery=False), 0.9)
    assert optimal_q(mdp, 1e-9, 1e-9)[0].max() == pytest.approx(0.9**5, abs=1e-6)


def test_nothing_follows_a_terminal_transition() -> None:
    """An entropy bonus after the end would make every value larger than its one reward."""
    mdp = MDP(np.array([[1.0, 0.0]]), sparse.csr_array((2, 1)), 0.9)
    np.testing.assert_allclose(optimal_q(mdp, 5.0), [[1.0, 0.0]])


def test_a_large_garnet_is_solved_in_seconds() -> None:
    mdp = garnet(10_000, 4, 5, 0.99, np.random.default_rng(0))
    tracemalloc.start()
    start = time.perf_counter()
    q = optimal_q(mdp, 0.05, tolerance=1e-8)
    seconds, (_, peak) = time.perf_counter() - start, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert np.abs(bellman_optimal(mdp, q, 0.05) - q).max() <= 1e-8 * (1 - 0.99)
    assert peak < 1e9
    nearest = optimal_q(mdp, 0.05)  # more than an iterative solve can give is asked for by default
    assert np.abs(bellman_optimal(mdp, nearest, 0.05) - nearest).max() < 1e-11
    assert seconds < 60  # about a quarter of a second; the limit only catches another algorithm


def test_it_stands_alone() -> None:
    """Neither PyTorch nor stable-baselines3 is needed for the exact part."""
    code = (
        "import sys\n"
        "from staq.tabular import audit, bounds, grids\n"
        "assert audit.audit(3, seed=0)\n"
        "assert not {'torch', 'stable_baselines3'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
