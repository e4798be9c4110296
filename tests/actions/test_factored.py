"""Factored actions equal the enumeration of the joint action space; a single part costs nothing."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from stable_baselines3.common.envs import IdentityEnvBox
from stable_baselines3.common.vec_env import DummyVecEnv
from torch.utils._python_dispatch import TorchDispatchMode

from staq import StaQ, registry
from staq.actions import ActionCodec, Factors
from staq.loop import PolicyMirrorDescent
from staq.networks.conv_mlp import ConvMlp
from staq.networks.ensemble import QEnsemble
from staq.networks.gradients import backpropagation, differentiate
from staq.policy_evaluation.replay_regression import taken_actions
from staq.policy_evaluation.soft_bellman import entropy, half_mse, soft_value, soft_value_of_sample
from staq.policy_improvement.actor import direct, information_projection, moment_projection
from staq.policy_improvement.mirror_descent import StepSize, kl_divergence
from staq.policy_improvement.natural_gradient import NaturalGradient
from staq.registry import ALGORITHMS
from tests.conftest import SMALL, Endless, targets_of

SIZES = st.lists(st.integers(1, 4), min_size=1, max_size=4)
SMALL_CASES = settings(max_examples=40, deadline=None)


class Joint:
    """The joint space of some factors, one column per joint action."""

    def __init__(self, sizes: list[int], seed: int) -> None:
        self.factors, self.generator = Factors(sizes), torch.Generator().manual_seed(seed)
        self.actions = torch.tensor(list(itertools.product(*map(range, sizes))))  # [|A|, D]

    def random(self, rows: int = 3) -> torch.Tensor:
        return 2 * torch.randn(rows, self.factors.n_outputs, generator=self.generator, dtype=torch.float64)

    def random_policy(self) -> torch.Tensor:
        return self.factors.log_softmax(self.random())

    def summed(self, values: torch.Tensor) -> torch.Tensor:
        """Σ_d values[d, a_d] of every joint action, by hand. [B, ΣK] → [B, |A|]"""
        columns = [
            sum(values[:, self.factors.first[d] + int(a)] for d, a in enumerate(action)) for action in self.actions
        ]
        return torch.stack(columns, dim=1)  # type: ignore[arg-type]

    def choices(self, actions: torch.Tensor) -> torch.Tensor:
        return actions[:, 0] if self.factors.single else actions


@SMALL_CASES
@given(SIZES, st.integers(0, 10**6))
def test_the_policy_equals_the_joint_softmax(sizes: list[int], seed: int) -> None:
    joint = Joint(sizes, seed)
    logits = joint.random()
    log_pi, enumerated = joint.factors.log_softmax(logits), joint.summed(logits).log_softmax(-1)
    torch.testing.assert_close(joint.summed(log_pi), enumerated)
    torch.testing.assert_close(joint.factors.softmax(logits), log_pi.exp())
    assert joint.factors.log_count == pytest.approx(math.log(len(joint.actions)))
    likeliest = joint.choices(joint.actions[enumerated.argmax(-1)])
    assert torch.equal(joint.factors.likeliest(logits), likeliest)


@SMALL_CASES
@given(SIZES, st.integers(0, 10**6))
def test_entropies_divergences_and_values_equal_enumeration(sizes: list[int], seed: int) -> None:
    joint = Joint(sizes, seed)
    log_p, log_q, q = joint.random_policy(), joint.random_policy(), joint.random()
    torch.testing.assert_close(entropy(log_p), entropy(joint.summed(log_p)))
    torch.testing.assert_close(kl_divergence(log_p, log_q), kl_divergence(joint.summed(log_p), joint.summed(log_q)))
    expected = soft_value(joint.summed(q), joint.summed(log_p), 0.3)
    torch.testing.assert_close(soft_value(q, log_p, 0.3), expected)


@SMALL_CASES
@given(SIZES, st.integers(0, 10**6))
def test_the_losses_of_actors_equal_enumeration(sizes: list[int], seed: int) -> None:
    joint, step = Joint(sizes, seed), StepSize(0.4, 1.5)
    log_pi, q, log_pi_k = joint.random_policy(), joint.random(), joint.random_policy()
    for loss in (information_projection, moment_projection, direct):
        found = joint.factors.total(lambda *parts, loss=loss: loss(*parts, step), log_pi, q, log_pi_k)
        torch.testing.assert_close(found, loss(joint.summed(log_pi), joint.summed(q), joint.summed(log_pi_k), step))


def test_draws_are_joint_and_follow_the_policy() -> None:
    joint, n = Joint([2, 3], 0), 40_000
    log_pi = joint.random_policy()[:1]
    drawn = joint.factors.draw(log_pi.exp().expand(n, -1), joint.generator)
    assert drawn.shape == (n, 2)
    counts = torch.bincount(drawn[:, 0] * 3 + drawn[:, 1], minlength=6) / n
    torch.testing.assert_close(counts.double(), joint.summed(log_pi).exp()[0], atol=0.01, rtol=0)


def test_the_value_of_samples_is_right_on_average() -> None:
    joint, n = Joint([2, 3, 2], 1), 40_000
    log_pi, q = joint.random_policy()[:1], joint.random(1)
    values = joint.factors.total(
        lambda q, log_pi: soft_value_of_sample(q, log_pi, 0.5, joint.generator),
        q.expand(n, -1).contiguous(),
        log_pi.expand(n, -1).contiguous(),
    )
    assert values.shape == (n,)
    assert values.mean().item() == pytest.approx(soft_value(q, log_pi, 0.5).item(), abs=0.05)


@pytest.mark.parametrize("sizes", [[3], [2, 3], [4, 4, 4]])
def test_the_regression_is_on_the_sum_over_parts(sizes: list[int]) -> None:
    factors, box = Factors(sizes), spaces.Box(-1, 1, (5,))
    torch.manual_seed(0)
    networks = QEnsemble(ConvMlp(box, factors, [8]), 2)
    with torch.no_grad():
        networks.weights["output.weight"].normal_()
    obs, target = torch.randn(32, 5), torch.randn(32)
    parts = torch.stack([torch.randint(0, size, (32,)) for size in sizes], dim=1)
    mask = taken_actions(parts[:, 0] if factors.single else parts, factors)
    critics = backpropagation(networks, 32)
    _, error = differentiate(lambda q: half_mse(q, target), (critics.forward(obs) * mask).sum(1))
    critics.backward(error.unsqueeze(1) * mask)
    found = {name: w.grad.clone() for name, w in networks.weights.items()}  # type: ignore[union-attr]
    networks.zero_grad()
    q = networks(obs).split(sizes, 1)
    taken = sum(part.gather(1, parts[:, d].expand(2, 1, -1)).squeeze(1) for d, part in enumerate(q))
    half_mse(taken, target).backward()  # type: ignore[arg-type]
    for name, weight in networks.weights.items():
        torch.testing.assert_close(found[name], weight.grad, rtol=1e-4, atol=1e-6)


def test_the_natural_gradient_is_that_of_the_joint_policy() -> None:
    """g against autograd on the enumerated objective, and F v against the enumerated Fisher information."""
    joint, box, tau = Joint([2, 3], 3), spaces.Box(-1, 1, (4,)), 0.3
    torch.manual_seed(0)
    update = NaturalGradient(ConvMlp(box, joint.factors, []), 1, NaturalGradient.Settings(cg_damping=0.0))
    with torch.no_grad():
        for weight in update.actor.weights.values():
            weight.normal_()
    obs, q = torch.randn(6, 4), joint.random(6).float()
    logits = update.actor(obs)[0].t()
    log_pi = joint.factors.log_softmax(logits)
    everything = joint.summed(log_pi)
    objective = soft_value(joint.summed(q), everything, tau).mean()
    parameters = list(update.actor.weights.values())

    def flat(tensors: Any) -> torch.Tensor:
        return torch.cat([t.flatten() for t in tensors])

    g = flat(torch.autograd.grad(objective, parameters, retain_graph=True))
    torch.testing.assert_close(update.gradient(obs, q, log_pi.detach(), tau), g, rtol=1e-4, atol=1e-6)
    v, fisher = torch.randn_like(g), torch.zeros(len(g), len(g))
    for row in range(6):
        for action in range(len(joint.actions)):
            score = flat(torch.autograd.grad(everything[row, action], parameters, retain_graph=True))
            fisher += everything[row, action].exp().detach() / 6 * torch.outer(score, score)
    torch.testing.assert_close(update.fisher_product(obs, log_pi.detach(), v), fisher @ v, rtol=1e-3, atol=1e-5)


def test_atoms_span_asymmetric_bounds() -> None:
    codec = ActionCodec(spaces.Box(np.array([-1.0, 0.0], np.float32), np.array([3.0, 0.5], np.float32)), n_atoms=5)
    assert codec.factors.sizes == (5, 5)
    actions = codec.actions(np.array([[0, 4], [2, 0], [4, 1]]))
    np.testing.assert_allclose(actions, [[-1, 0.5], [1, 0], [3, 0.125]])
    assert actions.dtype == np.float32
    np.testing.assert_array_equal(codec.indices(actions + 0.04), [[0, 4], [2, 0], [4, 1]])
    assert codec.labels()[1] == ["+0", "+0.12", "+0.25", "+0.38", "+0.5"]


def test_atoms_are_symmetric_and_zero_is_one_of_them() -> None:
    atoms = ActionCodec(spaces.Box(-0.4, 0.4, (17,))).atoms
    assert atoms is not None
    np.testing.assert_array_equal(atoms[:, 3], 0)
    np.testing.assert_array_equal(atoms, -atoms[:, ::-1])
    np.testing.assert_array_equal(atoms[:, [0, -1]], np.tile(np.float32([-0.4, 0.4]), (17, 1)))


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Box(-3.4e38, 3.4e38, (2,)), "unbounded"),
        (spaces.Box(0, 0, (2,)), "a single action"),
        (spaces.Box(-1, 1, (0,)), "no dimensions"),
        (spaces.MultiBinary([2, 2]), r"offer MultiBinary\(4\)"),
    ],
    ids=str,
)
def test_spaces_without_a_choice_are_named(space: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        StaQ("MlpPolicy", Endless(action_space=space))


@pytest.mark.parametrize(
    ("space", "sizes"),
    [
        (spaces.Discrete(4, start=2), (4,)),
        (spaces.MultiDiscrete([2, 5], start=[1, -2]), (2, 5)),
        (spaces.MultiDiscrete([[2, 3], [4, 5]]), (2, 3, 4, 5)),
        (spaces.MultiBinary([2, 2]), (2, 2, 2, 2)),
        (spaces.Box(-2, 2, (1,)), (7,)),
        (spaces.Box(-1, 1, (2, 3), dtype=np.float64), (7,) * 6),
    ],
    ids=str,
)
def test_every_space_there_and_back(space: spaces.Space[Any], sizes: tuple[int, ...]) -> None:
    codec = ActionCodec(space)
    assert codec.factors.sizes == sizes
    rng = np.random.default_rng(0)
    choices = np.stack([rng.integers(0, size, 20) for size in sizes], axis=1)
    choices = choices[:, 0] if codec.factors.single else choices
    actions = codec.actions(choices)
    assert all(space.contains(action) for action in actions)
    np.testing.assert_array_equal(codec.indices(actions), choices)
    assert [len(part) for part in codec.labels()] == list(sizes)


class Operators(TorchDispatchMode):
    """The name of every operator that runs."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_one_dimension_is_the_plain_case_operator_for_operator() -> None:
    """Seven atoms of a line and seven actions without an order are the same to every operator of an iteration."""

    def operators(space: spaces.Space[Any]) -> list[str]:
        model = StaQ("MlpPolicy", DummyVecEnv([lambda: Endless(action_space=space)] * 4), **SMALL)
        model.learn(200)
        with Operators() as seen:
            model.learn(200, reset_num_timesteps=False)
        return seen.names

    plain = operators(spaces.Discrete(7))
    assert plain == operators(spaces.Box(-1, 1, (1,)))
    assert not {name for name in plain if "split_with_sizes" in name}, "nothing is taken apart"


@pytest.mark.parametrize("algo", registry.ours())
def test_the_whole_family_acts_in_several_dimensions(algo: str) -> None:
    """Unequal parts: reward for choosing the last of each, whatever the state."""

    class Last(Endless):
        def step(self, action: Any) -> Any:
            assert self.action_space.contains(action)
            obs, _, _, _, info = super().step(0)
            return obs, float(action[0] == 1) + float(action[1] == 3), self.steps % 10 == 0, False, info

    space: Any = spaces.MultiDiscrete([2, 4])
    arguments: dict[str, Any] = SMALL | {"gamma": 0.0, "learning_rate": 3e-3, "kl_weight": 0.5, "ent_weight_init": 1.0}
    arguments |= {"ent_weight_final": 1.0, "reward_scale": 5.0, "policy_kwargs": {"net_arch": [16]}}
    del arguments["memory_size"]
    if algo.startswith("ac-"):
        arguments["actor_steps"] = 200
    if algo == "natgrad":
        arguments["max_kl"] = 0.2
    model: PolicyMirrorDescent = ALGORITHMS[algo].load()(
        "MlpPolicy", DummyVecEnv([lambda: Last(action_space=space)] * 4), **arguments
    )
    model.learn(2000)
    obs = np.zeros((5, 3), np.float32)
    np.testing.assert_array_equal(model.predict(obs, deterministic=True)[0], [[1, 3]] * 5)
    probabilities = model.action_probabilities(obs)
    assert probabilities.shape == (5, 6)
    np.testing.assert_allclose(probabilities[:, :2].sum(1), 1)
    np.testing.assert_allclose(probabilities[:, 2:].sum(1), 1)
    # The entropy weight is divided by ln|A| of the joint space.
    assert model.step_size.entropy_weight == pytest.approx(1 / math.log(8))


@pytest.mark.parametrize("target_action", ["expected", "sampled"])
@pytest.mark.parametrize("target_reduce", ["mean", "min"])
def test_targets_equal_those_of_the_enumerated_joint_space(target_action: str, target_reduce: str) -> None:
    """Of a trained model, γ > 0: the value of each next state by summing over, or drawing from, all joint actions."""
    space: Any = spaces.MultiDiscrete([2, 3])
    model = StaQ(
        "MlpPolicy",
        DummyVecEnv([lambda: Endless(action_space=space)] * 4),
        **SMALL | {"gamma": 0.9, "policy_kwargs": {"net_arch": [16]}, "learning_rate": 1e-2},
        target_action=target_action,
        target_reduce=target_reduce,
    )
    model.learn(1000)
    with torch.no_grad():  # members that disagree, also in how they divide a value between the parts
        model.policy.q_net_target.weights["output.bias"].normal_()
    joint, replay, tau = Joint([2, 3], 0), model.replay, model.step_size.entropy_weight
    rows = torch.arange(12)
    next_obs = replay.next_observations[rows]
    q = torch.stack([joint.summed(of_one.t()) for of_one in model.policy.q_net_target(next_obs)])  # [E, 12, |A|]
    log_pi = joint.summed(model.policy.logits_of(next_obs)).log_softmax(-1).to(q)
    repeats = 1 if target_action == "expected" else 4000
    found = targets_of(model, rows.repeat(repeats, 1)) if repeats > 1 else targets_of(model, rows[None])

    def target(value: torch.Tensor) -> torch.Tensor:
        continued = torch.where(replay.terminated[rows], 0.0, value)
        return model.reward_scale * replay.rewards[rows] + 0.9 * continued

    bonus = tau * entropy(log_pi)
    if target_action == "expected":
        value = (log_pi.exp() * q).sum(-1)
        torch.testing.assert_close(
            found[0], target((value.mean(0) if target_reduce == "mean" else value.amin(0)) + bonus)
        )
        return
    of_actions = q.mean(0) if target_reduce == "mean" else q.amin(0)  # [12, |A|]
    torch.testing.assert_close(found.mean(0), target((log_pi.exp() * of_actions).sum(-1) + bonus), rtol=0.02, atol=0.1)
    possible = torch.stack([target(of_one + bonus) for of_one in of_actions.t()])  # [|A|, 12]
    apart = (found[:200, None] - possible).abs().amin(1)
    assert apart.max() < 1e-3, "each is the value of some joint action"


def test_logits_have_no_offset_in_any_part() -> None:
    """What a value adds to all choices of a part would cost float32 the digits of their differences."""
    space: Any = spaces.MultiDiscrete([2, 30])
    model = StaQ("MlpPolicy", DummyVecEnv([lambda: Endless(action_space=space)] * 4), **SMALL)
    model.learn(600)
    logits = model.policy.logits_of(torch.randn(5, 3))
    for part in logits.split(model.factors.sizes, dim=-1):
        torch.testing.assert_close(part.mean(-1), torch.zeros(5, dtype=torch.float64), atol=1e-4, rtol=0)
    torch.testing.assert_close(
        model.replay.accumulated.values[:50],
        model.policy.improvement.accumulated(model.replay.next_observations[:50]),
        atol=1e-4,
        rtol=1e-4,
    )


def test_continuous_identity_is_solved() -> None:
    """The reward is 1 within 0.2 of the state, else 0: a uniform policy gets about 0.2."""
    envs = DummyVecEnv([lambda: IdentityEnvBox(-1, 1, 0.2)] * 10)
    model = StaQ(
        "MlpPolicy",
        envs,
        n_atoms=21,
        policy_update_interval=500,
        gradient_steps=500,
        batch_size=64,
        learning_rate=3e-3,
        kl_weight=0.5,
        ent_weight_init=0.5,
        ent_weight_final=0.1,
        ent_decay_steps=5000,
        memory_size=20,
        gamma=0.0,
        policy_kwargs={"net_arch": [64]},
        seed=0,
        device="cpu",
    )
    model.learn(10_000)
    states = np.linspace(-1, 1, 201, dtype=np.float32)[:, None]
    actions, _ = model.predict(states, deterministic=True)
    assert (np.abs(actions - states) < 0.201).mean() >= 0.9
