"""Each actor's update, run to convergence where the exact one is known: one-hot states and a linear network."""

from __future__ import annotations

from inspect import signature
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import IdentityEnv

from staq.actions import Factors
from staq.family import FAMILY
from staq.mirror_descent import StepSize, kl_divergence, mirror_step
from staq.q_networks import OUTPUT_BIAS, OUTPUT_WEIGHT, ConvMlp, QEnsemble
from staq.q_stack import QStack
from staq.replay import Replay
from staq.soft_bellman import soft_value
from staq.updates import ActorUpdate, GradientActor, NaturalGradientUpdate
from staq.updates.actor import direct, information_projection, moment_projection
from staq.updates.natural_gradient import conjugate_gradients

N_STATES, N_ACTIONS = 6, 3
STEP = StepSize(entropy_weight=0.4, kl_weight=0.8)
SPACE = spaces.Discrete(N_STATES)


def linear() -> ConvMlp:
    """Logits that are a table: one-hot states, no hidden layer."""
    return ConvMlp(SPACE, N_ACTIONS, net_arch=[])


def states_in_equal_number(architecture: ConvMlp | None = None) -> tuple[Replay, QEnsemble]:
    """A replay in which every state occurs equally often and leads to the next, and two critics with random tables."""
    torch.manual_seed(0)
    n = 4 * N_STATES
    replay = Replay(n, SPACE, spaces.Discrete(N_ACTIONS), Factors([N_ACTIONS]), torch.Generator().manual_seed(0))
    states = np.arange(n) % N_STATES
    for state in states:
        replay.add(
            np.array([state]),
            np.array([(state + 1) % N_STATES]),
            np.array([0]),
            np.array([0.0]),
            np.array([False]),
            [{}],
        )
    critics = QEnsemble(architecture or linear(), 2)
    with torch.no_grad():
        critics.weights[OUTPUT_WEIGHT].normal_()
        critics.weights[OUTPUT_BIAS].normal_()
    return replay, critics


def policy(update: ActorUpdate) -> torch.Tensor:
    return update.logits(update.accumulated(torch.arange(N_STATES))).log_softmax(-1)


def table(critics: QEnsemble) -> torch.Tensor:
    with torch.no_grad():
        return critics(torch.arange(N_STATES)).mean(0).t().double()


def converged(update: GradientActor) -> GradientActor:
    assert update.optimizer is not None
    for group in update.optimizer.param_groups:
        group["lr"] = 0.01
    return update


@pytest.mark.parametrize("loss", [moment_projection, direct])
def test_regularised_actors_reach_the_mirror_descent_policy(loss: Any) -> None:
    """Twice: the second update starts from a policy that is not uniform."""
    replay, critics = states_in_equal_number()
    update = converged(GradientActor(linear(), 2, loss, actor_steps=2000, batch_size=24))
    for _ in range(2):
        expected = mirror_step(policy(update), table(critics), STEP)
        update.improve(critics, replay, STEP)
        torch.testing.assert_close(policy(update).exp(), expected.exp(), rtol=0, atol=2e-3)
        assert update.diagnostics()["kl_from_exact_update"] < 1e-4


def test_the_unregularised_actor_reaches_the_softmax_of_q() -> None:
    """softmax(q/τ), StaQ's policy for M = 1."""
    replay, critics = states_in_equal_number()
    update = converged(GradientActor(linear(), 2, information_projection, 3000, 24, regularised=False))
    for _ in range(2):  # where it starts from plays no part
        update.improve(critics, replay, STEP)
        expected = (table(critics) / STEP.entropy_weight).softmax(-1)
        torch.testing.assert_close(policy(update).exp(), expected, rtol=0, atol=2e-3)
    stack = QStack(linear(), 2, memory_size=1)
    stack.push(critics.weights, STEP.beta)
    stack.prefactor = STEP.alpha / (1 - STEP.beta)
    ours = stack.logits(stack.accumulated(torch.arange(N_STATES))).softmax(-1)
    torch.testing.assert_close(policy(update).exp(), ours, rtol=0, atol=2e-3)


def actor_of(algo: str) -> GradientActor:
    """The update that a class of the family is built with, its actor a random table."""
    env = make_vec_env(lambda: IdentityEnv(dim=N_STATES), n_envs=1)
    model = FAMILY[algo]("MlpPolicy", env, actor_steps=3000, batch_size=24, device="cpu")
    update = model._make_update()(linear(), 2)
    assert isinstance(update, GradientActor)
    with torch.no_grad():
        update.actor.weights[OUTPUT_WEIGHT].normal_()
    return update


@pytest.mark.parametrize("algo", ["ac-nokl", "ac-mproj", "ac-directopt"])
def test_each_class_has_its_own_objective(algo: str) -> None:
    """From a policy that is far from both optima, softmax(q/τ) and the mirror descent policy."""
    replay, critics = states_in_equal_number()
    update = converged(actor_of(algo))
    step = STEP if algo != "ac-nokl" else StepSize(STEP.entropy_weight, 0.0)
    expected = mirror_step(policy(update), table(critics), step)
    update.improve(critics, replay, STEP)
    torch.testing.assert_close(policy(update).exp(), expected.exp(), rtol=0, atol=2e-3)


@pytest.mark.parametrize("algo", ["ac-nokl", "ac-mproj", "ac-directopt"])
def test_each_class_has_its_own_gradient(algo: str) -> None:
    """Where two objectives have one optimum, the way there still tells them apart: one step of each, by hand."""
    _, critics = states_in_equal_number()
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
    update.loss(logits.log_softmax(-1), q, log_pi, step).backward()
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
    replay, critics = states_in_equal_number()
    before = {name: w.detach().clone() for name, w in critics.weights.items()}
    for update in (
        converged(GradientActor(linear(), 2, direct, 50, 24)),
        NaturalGradientUpdate(linear(), 2, 0.01, 5, 0.0, 10),
    ):
        update.improve(critics, replay, STEP)
        assert policy(update).exp().std() > 0.01  # it did learn
        for name, weight in critics.weights.items():
            assert weight.grad is None
            assert torch.equal(weight, before[name])


def test_the_replay_follows_the_actor() -> None:
    replay, critics = states_in_equal_number()
    update = converged(GradientActor(linear(), 2, direct, 50, 24))
    update.improve(critics, replay, STEP)
    expected = update.accumulated(replay.next_observations)
    torch.testing.assert_close(replay.accumulated, expected)


def natural_gradient(max_kl: float = 1e-4, damping: float = 0.0) -> NaturalGradientUpdate:
    return NaturalGradientUpdate(linear(), 2, max_kl, cg_steps=60, cg_damping=damping, line_search_steps=10)


def test_the_natural_gradient_is_q_minus_tau_xi() -> None:
    """In every state, up to a constant: the step of Cen et al. in the space of logits, from a policy with a ξ."""
    replay, critics = states_in_equal_number()
    update = natural_gradient(max_kl=1e-3)
    with torch.no_grad():
        update.actor.weights[OUTPUT_WEIGHT].normal_().mul_(2)
    for _ in range(3):
        before = update.accumulated(torch.arange(N_STATES))
        update.improve(critics, replay, STEP)
        step = update.accumulated(torch.arange(N_STATES)) - before
        wanted = table(critics) - STEP.entropy_weight * before
        wanted -= wanted.mean(-1, keepdim=True)
        cosine = torch.nn.functional.cosine_similarity(step.flatten(), wanted.flatten(), dim=0)
        assert cosine.item() > 0.999
    assert policy(update).exp().std() > 0.05


def test_fisher_products_equal_the_matrix() -> None:
    """F = E[Jᵀ(diag π − ππᵀ)J], written out for a small network."""
    torch.manual_seed(0)
    update = NaturalGradientUpdate(ConvMlp(SPACE, N_ACTIONS, net_arch=[4]), 2, 0.01, 10, 0.3, 10)
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
    update = NaturalGradientUpdate(ConvMlp(SPACE, N_ACTIONS, net_arch=[4]), 2, 0.01, 10, 0.0, 10)
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
    replay, critics = states_in_equal_number()
    update, q = natural_gradient(max_kl), table(critics)
    with torch.no_grad():
        update.actor.weights[OUTPUT_WEIGHT].normal_().mul_(4)
    for _ in range(20):
        before = policy(update)
        update.improve(critics, replay, STEP)
        after = policy(update)
        assert kl_divergence(after, before).mean().item() <= max_kl * (1 + 1e-4)
        if not torch.equal(after, before):
            gain = soft_value(q, after, 0.4).mean() - soft_value(q, before, 0.4).mean()
            assert gain.item() > -1e-7


def test_the_first_step_is_as_long_as_the_limit_allows() -> None:
    """Near the uniform policy the quadratic model is right: √(2ε/gᵀF⁻¹g) F⁻¹g goes as far as ε."""
    replay, critics = states_in_equal_number()
    update = natural_gradient(1e-4)
    before = policy(update)
    update.improve(critics, replay, STEP)
    assert kl_divergence(policy(update), before).mean().item() == pytest.approx(1e-4, rel=0.4)


def test_a_step_that_is_too_long_is_shortened_and_taken() -> None:
    replay, critics = states_in_equal_number()
    update = natural_gradient(0.5)
    with torch.no_grad():
        update.actor.weights[OUTPUT_WEIGHT].normal_().mul_(4)
    before = policy(update)
    update.improve(critics, replay, STEP)
    assert update.diagnostics()["line_search_trials"] > 1
    assert not torch.equal(policy(update), before)


def test_an_actor_keeps_its_weights_and_its_optimisers_state() -> None:
    replay, critics = states_in_equal_number()
    update = converged(GradientActor(linear(), 2, moment_projection, actor_steps=30, batch_size=24))
    assert update.optimizer is not None
    update.improve(critics, replay, STEP)
    first = policy(update)
    for group in update.optimizer.param_groups:
        group["lr"] = 0.0
    update.improve(critics, replay, STEP)
    assert torch.equal(policy(update), first), "warm-started"
    assert not torch.equal(first, torch.zeros_like(first).log_softmax(-1))
    assert {int(state["step"]) for state in update.optimizer.state.values()} == {60}
    assert all(signature(FAMILY[algo]).parameters["actor_steps"].default == 5000 for algo in ("ac-mproj", "ac-nokl"))


def test_a_step_that_cannot_gain_is_not_taken() -> None:
    replay, critics = states_in_equal_number()
    update = natural_gradient()
    with torch.no_grad():
        for weight in critics.weights.values():
            weight.zero_()  # the uniform policy is best
    update.improve(critics, replay, STEP)
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
