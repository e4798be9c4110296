"""Each actor's update, run to convergence where the exact one is known: one-hot states and a linear network."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces

from staq.experience.states import States
from staq.networks.architecture import OUTPUT_BIAS, OUTPUT_WEIGHT
from staq.networks.conv_mlp import ConvMlp
from staq.networks.ensemble import QEnsemble
from staq.networks.optimizer import FusedAdam
from staq.policy_evaluation.soft_bellman import soft_value
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
from staq.policy_improvement.improvement import LogitsChange
from staq.policy_improvement.mirror_descent import StepSize, kl_divergence, mirror_step
from staq.policy_improvement.natural_gradient import NaturalGradient, conjugate_gradients
from staq.policy_improvement.q_stack import QStack
from staq.registry import ALGORITHMS

N_STATES, N_ACTIONS = 6, 3
STEP = StepSize(entropy_weight=0.4, kl_weight=0.8)
SPACE = spaces.Discrete(N_STATES)


def linear() -> ConvMlp:
    """Logits that are a table: one-hot states, no hidden layer."""
    return ConvMlp(SPACE, N_ACTIONS, net_arch=[])


GENERATOR = torch.Generator()


def random_critics(architecture: ConvMlp | None = None) -> QEnsemble:
    """Two critics with random tables."""
    torch.manual_seed(0)
    GENERATOR.manual_seed(0)
    critics = QEnsemble(architecture or linear(), 2)
    with torch.no_grad():
        critics.weights[OUTPUT_WEIGHT].normal_()
        critics.weights[OUTPUT_BIAS].normal_()
    return critics


def improve(update: Actor, critics: QEnsemble) -> LogitsChange:
    """An update on states of which every one occurs equally often."""
    obs = torch.arange(4 * N_STATES) % N_STATES
    states = States(
        obs,
        lambda: critics(obs).mean(0).t(),
        lambda: update.log_policy(obs).float(),
        lambda n: torch.randint(len(obs), (n, 24), generator=GENERATOR),
    )
    return update.improve(critics, states, STEP)


def policy(update: Actor) -> torch.Tensor:
    return update.logits(update.accumulated(torch.arange(N_STATES))).log_softmax(-1)


def table(critics: QEnsemble) -> torch.Tensor:
    with torch.no_grad():
        return critics(torch.arange(N_STATES)).mean(0).t().double()


def gradient_actor(kind: type[GradientActor], steps: int, rate: float = 0.01) -> GradientActor:
    update = kind(linear(), 2, GradientActor.Settings(actor_steps=steps))
    update.optimizer = FusedAdam(update.parameters(), lr=rate)
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


def natural_gradient(
    max_kl: float = 1e-4, architecture: ConvMlp | None = None, cg_steps: int = 60, damping: float = 0.0
) -> NaturalGradient:
    settings = NaturalGradient.Settings(max_kl, cg_steps, damping, line_search_steps=10)
    return NaturalGradient(architecture or linear(), 2, settings)


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


def test_linear_features_shared_by_q_and_logits_make_the_stack_one_network() -> None:
    """App. C.2: then βθ + αθ' has the logits βξ + αq, so mirror descent in parameter space equals the stack."""
    torch.manual_seed(0)
    architecture = ConvMlp(spaces.Box(-1, 1, (4,)), N_ACTIONS, net_arch=[])
    stack, theta = QStack(architecture, 1, memory_size=None), None
    obs = torch.randn(7, 4)
    for _ in range(5):
        weights = {name: torch.randn(1, *shape) for name, shape in stack.shapes.items()}
        stack.push(weights, STEP.beta, STEP.alpha)
        scaled = {name: STEP.alpha * w for name, w in weights.items()}
        theta = scaled if theta is None else {name: STEP.beta * theta[name] + scaled[name] for name in theta}
        in_parameter_space = architecture.q_values(theta, obs)[0].t().softmax(-1)
        ours = stack.logits(stack.accumulated(obs)).softmax(-1).float()
        torch.testing.assert_close(in_parameter_space, ours, rtol=1e-4, atol=1e-6)
