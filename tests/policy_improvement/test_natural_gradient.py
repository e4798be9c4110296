"""The natural gradient: its direction, its Fisher products, and what its line search allows."""

from __future__ import annotations

import pytest
import torch

from staq.networks.architecture import OUTPUT_WEIGHT
from staq.networks.conv_mlp import ConvMlp
from staq.policy_evaluation.soft_bellman import soft_value
from staq.policy_improvement.mirror_descent import kl_divergence
from staq.policy_improvement.natural_gradient import conjugate_gradients
from tests.policy_improvement.conftest import (
    N_ACTIONS,
    N_STATES,
    SPACE,
    STEP,
    improve,
    natural_gradient,
    policy,
    random_critics,
    table,
)


def test_the_natural_gradient_is_q_minus_tau_xi() -> None:
    """In every state, up to a constant: the step of Cen et al. in the space of logits, from a policy with a ξ."""
    critics = random_critics()
    update = natural_gradient(max_kl=1e-3)
    with torch.no_grad():
        update.actor.weights[OUTPUT_WEIGHT].normal_().mul_(2)
    for _ in range(3):
        before = update.accumulated(torch.arange(N_STATES))
        improve(update, critics)
        step = update.accumulated(torch.arange(N_STATES)) - before
        wanted = table(critics) - STEP.entropy_weight * before
        wanted -= wanted.mean(-1, keepdim=True)
        cosine = torch.nn.functional.cosine_similarity(step.flatten(), wanted.flatten(), dim=0)
        assert cosine.item() > 0.999
    assert policy(update).exp().std() > 0.05


def test_fisher_products_equal_the_matrix() -> None:
    """F = E[Jᵀ(diag π − ππᵀ)J], written out for a small network."""
    torch.manual_seed(0)
    update = natural_gradient(0.01, ConvMlp(SPACE, N_ACTIONS, net_arch=[4]), 10, 0.3)
    with torch.no_grad():
        update.actor.weights[OUTPUT_WEIGHT].normal_()
    obs = torch.arange(N_STATES)
    log_pi = policy(update).float()
    names = list(update.actor.weights)

    def logits(*weights: torch.Tensor) -> torch.Tensor:
        return update.actor.architecture.q_values(dict(zip(names, weights, strict=True)), obs)[0].t()

    jacobians = torch.autograd.functional.jacobian(logits, tuple(update.actor.weights.values()))
    jacobian = torch.cat([j.flatten(2) for j in jacobians], -1)  # [S, A, weights]
    pi = log_pi.exp()
    inner = torch.diag_embed(pi) - pi[:, :, None] * pi[:, None, :]
    fisher = torch.einsum("sap,sab,sbq->pq", jacobian, inner, jacobian) / N_STATES
    vector = torch.randn(fisher.shape[0])
    with torch.no_grad():
        found = update.fisher_product(obs, log_pi, vector)
    torch.testing.assert_close(found, fisher @ vector + 0.3 * vector, rtol=1e-4, atol=1e-5)


def test_the_gradient_is_that_of_the_objective() -> None:
    torch.manual_seed(0)
    update = natural_gradient(0.01, ConvMlp(SPACE, N_ACTIONS, net_arch=[4]), 10)
    with torch.no_grad():
        update.actor.weights[OUTPUT_WEIGHT].normal_()
    obs, q = torch.arange(N_STATES), torch.randn(N_STATES, N_ACTIONS)
    log_pi = update.actor(obs)[0].t().log_softmax(-1)
    soft_value(q, log_pi, 0.4).mean().backward()
    expected = torch.cat([w.grad.flatten() for w in update.actor.weights.values() if w.grad is not None])
    with torch.no_grad():
        found = update.gradient(obs, q, log_pi.detach(), 0.4)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("max_kl", [1e-4, 1e-2, 0.1, 1.0])
def test_the_line_search_never_exceeds_its_limit_and_always_gains(max_kl: float) -> None:
    """From policies far from uniform, where a quadratic model of the divergence is several times too small."""
    critics = random_critics()
    update, q = natural_gradient(max_kl), table(critics)
    with torch.no_grad():
        update.actor.weights[OUTPUT_WEIGHT].normal_().mul_(4)
    for _ in range(20):
        before = policy(update)
        improve(update, critics)
        after = policy(update)
        assert kl_divergence(after, before).mean().item() <= max_kl * (1 + 1e-4)
        if not torch.equal(after, before):
            gain = soft_value(q, after, 0.4).mean() - soft_value(q, before, 0.4).mean()
            assert gain.item() > -1e-7


def test_the_first_step_is_as_long_as_the_limit_allows() -> None:
    """Near the uniform policy the quadratic model is right: √(2ε/gᵀF⁻¹g) F⁻¹g goes as far as ε."""
    critics = random_critics()
    update = natural_gradient(1e-4)
    before = policy(update)
    improve(update, critics)
    assert kl_divergence(policy(update), before).mean().item() == pytest.approx(1e-4, rel=0.4)


def test_a_step_that_is_too_long_is_shortened_and_taken() -> None:
    critics = random_critics()
    update = natural_gradient(0.5)
    with torch.no_grad():
        update.actor.weights[OUTPUT_WEIGHT].normal_().mul_(4)
    before = policy(update)
    improve(update, critics)
    assert update.diagnostics()["line_search_trials"] > 1
    assert not torch.equal(policy(update), before)


def test_a_step_that_cannot_gain_is_not_taken() -> None:
    critics = random_critics()
    update = natural_gradient()
    with torch.no_grad():
        for weight in critics.weights.values():
            weight.zero_()  # the uniform policy is best
    improve(update, critics)
    torch.testing.assert_close(policy(update).exp(), torch.full((N_STATES, N_ACTIONS), 1 / 3, dtype=torch.float64))
    assert update.diagnostics()["line_search_trials"] == 0


def test_conjugate_gradients_solve() -> None:
    torch.manual_seed(0)
    root = torch.randn(8, 8, dtype=torch.float64)
    matrix, b = root @ root.t() + torch.eye(8), torch.randn(8, dtype=torch.float64)
    torch.testing.assert_close(conjugate_gradients(lambda v: matrix @ v, b, 50), torch.linalg.solve(matrix, b))
