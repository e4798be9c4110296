"""Each actor's update, run to convergence where the exact one is known: one-hot states and a linear network."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from staq.networks.architecture import OUTPUT_WEIGHT
from staq.policy_improvement.actor import (
    Actor,
    DirectOptimization,
    GradientActor,
    InformationProjection,
    MomentProjection,
    direct,
    information_projection,
    moment_projection,
)
from staq.policy_improvement.mirror_descent import StepSize, mirror_step
from staq.policy_improvement.q_stack import QStack
from staq.registry import ALGORITHMS
from tests.policy_improvement.conftest import (
    N_STATES,
    STEP,
    improve,
    linear,
    natural_gradient,
    policy,
    random_critics,
    table,
)


def gradient_actor(kind: type[GradientActor], steps: int, rate: float = 0.01) -> GradientActor:
    update = kind(linear(), 2, GradientActor.Settings(actor_steps=steps))
    update.optimizer = torch.optim.Adam(update.parameters(), lr=rate)
    return update


@pytest.mark.parametrize("kind", [MomentProjection, DirectOptimization])
def test_regularised_actors_reach_the_mirror_descent_policy(kind: type[GradientActor]) -> None:
    """Twice: the second update starts from a policy that is not uniform."""
    critics = random_critics()
    update = gradient_actor(kind, 2000)
    for _ in range(2):
        expected = mirror_step(policy(update), table(critics), STEP)
        improve(update, critics)
        torch.testing.assert_close(policy(update).exp(), expected.exp(), rtol=0, atol=2e-3)
        assert update.diagnostics()["kl_from_exact_update"] < 1e-4


def test_the_unregularised_actor_reaches_the_softmax_of_q() -> None:
    """softmax(q/τ), StaQ's policy for M = 1."""
    critics = random_critics()
    update = gradient_actor(InformationProjection, 3000)
    for _ in range(2):  # where it starts from plays no part
        improve(update, critics)
        expected = (table(critics) / STEP.entropy_weight).softmax(-1)
        torch.testing.assert_close(policy(update).exp(), expected, rtol=0, atol=2e-3)
    stack = QStack(linear(), 2, memory_size=1)
    stack.push(critics.weights, STEP.beta)
    stack.prefactor = STEP.alpha / (1 - STEP.beta)
    ours = stack.logits(stack.accumulated(torch.arange(N_STATES))).softmax(-1)
    torch.testing.assert_close(policy(update).exp(), ours, rtol=0, atol=2e-3)


def actor_of(algo: str) -> GradientActor:
    """The improvement of an algorithm, its actor a random table."""
    update = gradient_actor(ALGORITHMS[algo].load().improvement, 3000)
    with torch.no_grad():
        update.actor.weights[OUTPUT_WEIGHT].normal_()
    return update


@pytest.mark.parametrize("algo", ["ac-nokl", "ac-mproj", "ac-directopt"])
def test_each_class_has_its_own_objective(algo: str) -> None:
    """From a policy that is far from both optima, softmax(q/τ) and the mirror descent policy."""
    critics = random_critics()
    update = actor_of(algo)
    step = STEP if algo != "ac-nokl" else StepSize(STEP.entropy_weight, 0.0)
    expected = mirror_step(policy(update), table(critics), step)
    improve(update, critics)
    torch.testing.assert_close(policy(update).exp(), expected.exp(), rtol=0, atol=2e-3)


@pytest.mark.parametrize("algo", ["ac-nokl", "ac-mproj", "ac-directopt"])
def test_each_class_has_its_own_gradient(algo: str) -> None:
    """Where two objectives have one optimum, the way there still tells them apart: one step of each, by hand."""
    critics = random_critics()
    update = actor_of(algo)
    step = update.effective(STEP)
    log_pi = policy(update).float()
    p, q, log_target = log_pi.exp(), table(critics).float(), mirror_step(log_pi, table(critics).float(), step)
    if algo == "ac-mproj":
        wanted = p - log_target.exp()
    else:  # KL(π; target), in units of 1 or of τ + η
        ratio = log_pi - log_target
        wanted = p * (ratio - (p * ratio).sum(-1, keepdim=True))
        wanted = wanted * (STEP.entropy_weight + STEP.kl_weight if algo == "ac-directopt" else 1.0)
    logits = update.actor(torch.arange(N_STATES))[0].t().detach().requires_grad_()
    type(update).loss(logits.log_softmax(-1), q, log_pi, step).backward()
    assert logits.grad is not None
    torch.testing.assert_close(logits.grad, wanted / N_STATES, rtol=1e-4, atol=1e-6)


def test_losses_by_hand() -> None:
    """One state, two actions: π = (¼, ¾), π_k = (½, ½), q = (1, 0), τ = η = 1, so α = β = ½."""
    log_pi, log_pi_k = torch.tensor([[0.25, 0.75]]).log(), torch.tensor([[0.5, 0.5]]).log()
    q, step = torch.tensor([[1.0, 0.0]]), StepSize(1.0, 1.0)
    target = np.exp(0.5) / (np.exp(0.5) + 1)
    pi, p = np.array([0.25, 0.75]), np.array([target, 1 - target])
    assert moment_projection(log_pi, q, log_pi_k, step).item() == pytest.approx((p * np.log(p / pi)).sum())
    assert information_projection(log_pi, q, log_pi_k, step).item() == pytest.approx((pi * np.log(pi / p)).sum())
    entropy = -(pi * np.log(pi)).sum()
    expected = 0.25 + entropy - (pi * np.log(pi / 0.5)).sum()
    assert direct(log_pi, q, log_pi_k, step).item() == pytest.approx(-expected)


def test_actors_leave_the_critics_alone() -> None:
    critics = random_critics()
    before = {name: w.detach().clone() for name, w in critics.weights.items()}
    updates: list[Actor] = [gradient_actor(DirectOptimization, 50), natural_gradient(0.01)]
    for update in updates:
        improve(update, critics)
        assert policy(update).exp().std() > 0.01  # it did learn
        for name, weight in critics.weights.items():
            assert weight.grad is None
            assert torch.equal(weight, before[name])


def test_the_change_it_reports_is_the_change_it_made() -> None:
    critics, states = random_critics(), torch.arange(N_STATES)
    for update in (gradient_actor(DirectOptimization, 50), natural_gradient(0.01)):
        before = update.accumulated(states)
        change = improve(update, critics)
        expected = update.accumulated(states)
        assert not torch.equal(expected, before)
        assert torch.equal(change.applied(before, states, update.architecture), expected)


def test_an_actor_keeps_its_weights_and_its_optimisers_state() -> None:
    critics = random_critics()
    update = gradient_actor(MomentProjection, 30)
    assert update.optimizer is not None
    improve(update, critics)
    first = policy(update)
    for group in update.optimizer.param_groups:
        group["lr"] = 0.0
    improve(update, critics)
    assert torch.equal(policy(update), first), "warm-started"
    assert not torch.equal(first, torch.zeros_like(first).log_softmax(-1))
    assert {int(state["step"]) for state in update.optimizer.state.values()} == {60}
