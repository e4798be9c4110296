"""Eqs. 2–6: literal numbers, and equalities between the forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from staq.policy_improvement.mirror_descent import (
    StepSize,
    annealed,
    centred,
    kl_divergence,
    memory_correction,
    pushed_weights,
)


def test_step_size_by_hand() -> None:
    step = StepSize(entropy_weight=5.0, kl_weight=20.0)
    assert step.alpha == pytest.approx(1 / 25)
    assert step.beta == pytest.approx(0.8)
    assert step.alpha * step.entropy_weight == pytest.approx(1 - step.beta)


@pytest.mark.parametrize(("steps", "value"), [(0, 2.0), (250, 1.6), (500, 1.2), (1000, 0.4), (5000, 0.4)])
def test_annealing_by_hand(steps: int, value: float) -> None:
    assert annealed(2.0, 0.4, 1000, steps) == pytest.approx(value)


def test_no_decay_is_the_final_value() -> None:
    assert annealed(2.0, 0.4, 0, 0) == pytest.approx(0.4)


def test_weights_by_hand_with_changing_beta() -> None:
    """M = 2, βs of 0.5, 0.25, 0.1: q_2, then 0.1·q_1; the deleted q_0 has 0.1·0.25."""
    weights, deleted = pushed_weights([], 0.5, 1.0, 2)
    assert (weights, deleted) == ([1.0], None)
    weights, deleted = pushed_weights(weights, 0.25, 1.0, 2)
    assert (weights, deleted) == ([0.25, 1.0], None)
    weights, deleted = pushed_weights(weights, 0.1, 1.0, 2)
    assert weights == pytest.approx([0.1, 1.0])
    assert deleted == pytest.approx(0.025)


def test_correction_by_hand() -> None:
    assert memory_correction(0.5, 3) == pytest.approx(8 / 7)
    assert memory_correction(0.5, None) == 1.0


@given(tau=st.floats(0.01, 5), eta=st.floats(0.0, 50), memory=st.integers(1, 12) | st.none(), pushes=st.integers(1, 20))
def test_sum_of_the_weights(tau: float, eta: float, memory: int | None, pushes: int) -> None:
    """(1−β^n)/(τ(1−β^M)) for n networks at constant τ, so 1/τ once n = M; without a limit (1−β^n)/τ."""
    step = StepSize(tau, eta)
    weights: list[float] = []
    for _ in range(pushes):
        weights, _ = pushed_weights(weights, step.beta, 1.0, memory)
    n = len(weights)
    total = step.alpha * memory_correction(step.beta, memory) * sum(weights)
    limit = 1.0 if memory is None else 1 - step.beta**memory
    assert total == pytest.approx((1 - step.beta**n) / (tau * limit), rel=1e-9)
    if n == memory:
        assert total == pytest.approx(1 / tau, rel=1e-9)


@pytest.mark.parametrize("memory", [1, 2, 5])
def test_eq_2_is_the_recursion_of_eq_6(memory: int) -> None:
    """ξ_{k+1} = β ξ_k + α q_k + αβ^M/(1−β^M) (q_k − q_{k−M}) at constant τ."""
    rng, step = np.random.default_rng(0), StepSize(0.7, 3.0)
    alpha, beta, q = step.alpha, step.beta, rng.normal(size=(12, 4))
    recursive, weights = np.zeros(4), []
    for k in range(12):
        oldest = q[k - memory] if k >= memory else np.zeros(4)
        recursive = beta * recursive + alpha * q[k] + alpha * beta**memory / (1 - beta**memory) * (q[k] - oldest)
        weights, _ = pushed_weights(weights, beta, 1.0, memory)
        direct = alpha * memory_correction(beta, memory) * np.dot(weights, q[k + 1 - len(weights) : k + 1])
        np.testing.assert_allclose(direct, recursive, rtol=1e-12, atol=1e-12)


def test_exact_weighting_maximises_eq_4_under_annealing() -> None:
    """softmax(ξ_{k+1}) with ξ_{k+1} = β_k ξ_k + α_k q_k beats every other policy tried."""
    rng = np.random.default_rng(1)
    xi = np.zeros(3)
    for tau in (2.0, 1.5, 0.9):
        step, q = StepSize(tau, 4.0), rng.normal(size=3)
        previous = torch.tensor(xi).log_softmax(-1)
        xi = step.beta * xi + step.alpha * q
        best = torch.tensor(xi).log_softmax(-1)

        def objective(log_p: torch.Tensor, q: np.ndarray = q, tau: float = tau, old: torch.Tensor = previous) -> float:
            p = log_p.exp()
            return float((p * torch.tensor(q)).sum() - tau * (p * log_p).sum() - 4.0 * kl_divergence(log_p, old))

        for _ in range(200):
            other = torch.tensor(xi + rng.normal(size=3) * 0.3).log_softmax(-1)
            assert objective(other) <= objective(best) + 1e-12


def test_centring_changes_no_policy() -> None:
    q = torch.tensor([[1000.0, 1002.0, 998.5]], dtype=torch.float64)
    assert centred(q).sum().item() == pytest.approx(0.0, abs=1e-9)
    torch.testing.assert_close(centred(q).softmax(-1), q.softmax(-1))


def test_kl_by_hand() -> None:
    p, q = torch.tensor([0.5, 0.5]), torch.tensor([0.25, 0.75])
    expected = 0.5 * math.log(2) + 0.5 * math.log(2 / 3)
    assert kl_divergence(p.log(), q.log()).item() == pytest.approx(expected)
