"""The algorithms' limits, the rates, and the statements: as stated they fail, as repaired they hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from staq.policy_improvement.mirror_descent import memory_correction, pushed_weights
from staq.tabular import bounds
from staq.tabular.mdp import dirichlet, garnet
from staq.tabular.mirror_descent import Settings, run
from staq.tabular.operators import entropy, kl_divergence, optimal_q, policy_of, q_of_policy


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("evaluation", ["value", "policy"])
def test_exact_mirror_descent_converges(seed: int, evaluation: str) -> None:
    rng = np.random.default_rng(seed)
    mdp = dirichlet(5, 3, 0.8, rng)
    history = run(mdp, Settings(0.2, 1.0, evaluation), 400)  # type: ignore[arg-type]
    np.testing.assert_allclose(0.2 * history.logits[-1], optimal_q(mdp, 0.2), atol=1e-9)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("extra", [0, 1, 20])
def test_finite_memory_converges_above_the_threshold(seed: int, extra: int) -> None:
    rng = np.random.default_rng(seed)
    gamma, beta, tau = rng.uniform(0.2, 0.7), rng.uniform(0.1, 0.8), 0.3
    mdp = garnet(6, 3, 2, gamma, rng)
    memory = bounds.minimum_memory(gamma, beta) + extra
    history = run(mdp, Settings(tau, tau * beta / (1 - beta), "policy", memory), 300)
    np.testing.assert_allclose(tau * history.logits[-1], optimal_q(mdp, tau), atol=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_without_correction_the_limit_is_another_fixed_point(seed: int) -> None:
    """τξ = (1−β^M) Q^{π_ξ}, which is neither Q* nor (1−β^M) Q*."""
    rng = np.random.default_rng(seed)
    mdp, tau, eta, memory = dirichlet(5, 3, 0.8, rng), 0.1, 0.4, 4
    settings = Settings(tau, eta, "policy", memory, weight_correction=False)
    history, shrunk = run(mdp, settings, 600), 1 - settings.beta**memory
    limit, optimal = tau * history.logits[-1], optimal_q(mdp, tau)
    np.testing.assert_allclose(limit, shrunk * q_of_policy(mdp, history.log_pi[-1], tau), atol=1e-10)
    assert bounds.norm(limit - optimal) > 1e-3 * bounds.norm(optimal)
    assert bounds.norm(limit - shrunk * optimal) > 1e-3 * bounds.norm(optimal)


@pytest.mark.parametrize("memory", [1, 3, 7])
def test_eq_7_is_maximised(memory: int) -> None:
    """p·[q + β^M/(1−β^M)(q − q_old)] − τh(p) − η KL(p; π_k) has its maximum at π_{k+1}, in every state."""
    rng = np.random.default_rng(0)
    mdp, tau, eta = dirichlet(4, 3, 0.8, rng), 0.3, 0.9
    history = run(mdp, Settings(tau, eta, "policy", memory), 12, lambda k: rng.normal(size=(4, 3)))
    lost = history.settings.beta**memory
    for k in range(12):
        oldest = history.q[k - memory] if k >= memory else 0.0
        q = history.q[k] + lost / (1 - lost) * (history.q[k] - oldest)

        def objective(log_p: np.ndarray, q: np.ndarray = q, old: np.ndarray = history.log_pi[k]) -> np.ndarray:
            return (np.exp(log_p) * q).sum(-1) + tau * entropy(log_p) - eta * kl_divergence(log_p, old)

        best = objective(history.log_pi[k + 1])
        for _ in range(50):
            other = policy_of(history.logits[k + 1] + 0.5 * rng.normal(size=(4, 3)))
            assert (objective(other) <= best + 1e-10).all()


def test_the_agents_weights_are_these() -> None:
    """What the deep agent accumulates is Eq. 2 of the tabular run."""
    rng = np.random.default_rng(0)
    mdp, memory = dirichlet(4, 3, 0.8, rng), 3
    history = run(mdp, Settings(0.3, 0.9, "policy", memory), 8)
    weights: list[float] = []
    for k in range(8):
        weights, _ = pushed_weights(weights, history.settings.beta, 1.0, memory)
        c = sum(w * q for w, q in zip(weights, history.q[k + 1 - len(weights) : k + 1], strict=True))
        xi = history.settings.alpha * memory_correction(history.settings.beta, memory) * c
        np.testing.assert_allclose(xi, history.logits[k + 1], atol=1e-12)


# ---------------------------------------------------------------------- thresholds and rates


@pytest.mark.parametrize(
    ("n_actions", "final", "initial"), [(2, 558, 118), (3, 880, 182), (4, 1109, 228), (5, 1286, 263), (6, 1431, 292)]
)
def test_the_papers_memory_against_its_threshold(n_actions: int, final: int, initial: int) -> None:
    """γ = 0.99, η = 20: M has to be above these, here rounded, at scaled entropy weights 0.4 and 2.0."""
    for scaled, threshold in ((0.4, final), (2.0, initial)):
        tau = scaled / np.log(n_actions)
        beta = 20 / (20 + tau)
        exact, least = bounds.memory_threshold(0.99, beta), bounds.minimum_memory(0.99, beta)
        assert round(exact) == threshold
        assert least - 1 <= exact < least


def test_the_rate_tends_to_the_larger_of_gamma_and_root_beta() -> None:
    """γ = 0.5, β = 0.99: not to γ, as the paper says."""
    assert bounds.convergence_rate(0.5, 0.99, 655) == pytest.approx(0.99744, abs=1e-5)
    assert bounds.convergence_rate(0.5, 0.99, 16_396) == pytest.approx(0.99509, abs=1e-5)
    assert bounds.convergence_rate(0.5, 0.99, 10**6) == pytest.approx(np.sqrt(0.99), abs=1e-4)
    assert bounds.convergence_rate(0.9, 0.5, 2000) == pytest.approx(0.9, abs=1e-6)
    with pytest.raises(ValueError, match="below the theorem's threshold"):
        bounds.convergence_rate(0.5, 0.99, 10)


def test_the_rate_solves_its_equation() -> None:
    d, (gamma_m, c) = bounds.convergence_rate(0.6, 0.5, 9), bounds.memory_constants(0.6, 0.5, 9)
    assert d**19 - gamma_m * d**18 - c == pytest.approx(0.0, abs=1e-12)
    assert gamma_m < d < 1


def test_geometric_sum() -> None:
    for gamma, beta in ((0.5, 0.9), (0.9, 0.5), (0.7, 0.7)):
        direct = sum(gamma**i * beta ** (6 - i) for i in range(7))
        assert bounds.geometric_sum(gamma, beta, 6) == pytest.approx(direct)


# ---------------------------------------------------------------------- the statements


def test_a_repair_is_needed_for_each_of_its_parts() -> None:
    """Theorem 4.2's divergence term is positive, and terms add up to the right side."""
    rng = np.random.default_rng(0)
    mdp = dirichlet(4, 3, 0.8, rng)
    history = run(mdp, Settings(0.3, 0.9, "value"), 10, lambda k: rng.normal(size=(4, 3)))
    for side in bounds.theorem_4_2(history, optimal_q(mdp, 0.3), repaired=True):
        assert side.right == pytest.approx(sum(side.terms.values()))
    assert side.terms["divergence"] > 0


@pytest.mark.parametrize(
    ("settings", "statement", "message"),
    [
        (Settings(0.1, 1.0, "value"), bounds.theorem_4_4, "about policy iteration"),
        (Settings(0.1, 1.0, "policy", 30), bounds.theorem_4_4, "unlimited memory: the run has memory_size=30"),
        (Settings(0.1, 1.0, "policy"), bounds.theorem_5_1, "a finite memory"),
        (Settings(0.1, 1.0, "policy", 30, weight_correction=False), bounds.theorem_5_1, "corrected weights"),
        (Settings(0.1, 1.0, "value", annealing=lambda k: 0.1), bounds.theorem_4_2, "constant τ"),
    ],
)
def test_a_run_of_another_kind_is_refused(settings: Settings, statement: Any, message: str) -> None:
    mdp = dirichlet(3, 2, 0.5, np.random.default_rng(0))
    history = run(mdp, settings, 3)
    with pytest.raises(ValueError, match=message):
        statement(history, optimal_q(mdp, 0.1), repaired=True)


def test_update_errors_belong_to_theorem_4_2_alone() -> None:
    mdp = dirichlet(3, 2, 0.5, np.random.default_rng(0))
    history = run(mdp, Settings(0.1, 1.0, "policy"), 3, update_errors=lambda k: np.ones((3, 2)))
    with pytest.raises(ValueError, match="exact policy updates"):
        bounds.lemma_4_3(history, repaired=True)


def test_rates_at_the_edges() -> None:
    assert bounds.convergence_rate(0.0, 0.5, 5) == 0.0
    assert bounds.geometric_sum(0.9, 0.9 + 1e-14, 20) == pytest.approx(21 * 0.9**20, rel=1e-9)
