"""The batched stack against a loop over frozen networks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from examples import staq_plain as plain
from staq.networks.architecture import OUTPUT_BIAS, Architecture
from staq.networks.chunks import CPU_BLOCK
from staq.networks.conv_mlp import ConvMlp
from staq.networks.stacked_module import over_extractor
from staq.policy_improvement.mirror_descent import StepSize, memory_correction
from staq.policy_improvement.q_stack import QStack
from tests.conftest import BOARD, VECTOR, TinyExtractor, random_weights
from tests.policy_improvement.conftest import N_ACTIONS, STEP

MLP = ConvMlp(VECTOR, 3, [8])


class PlainStack:
    """Eq. 2 as ``examples/staq_plain.py`` has it: a list of networks, a list of weights, a loop."""

    def __init__(self, architecture: Architecture, memory: int | None) -> None:
        self.architecture, self.memory = architecture, memory or 10**9
        self.ensembles: list[Any] = []
        self.weights: list[float] = []

    def push(self, weights: dict[str, torch.Tensor], beta: float) -> None:
        architecture, own = self.architecture, {name: w.clone() for name, w in weights.items()}
        # Plain functions, which a deep copy leaves as they are.
        ensemble: Any = [lambda obs, e=e: architecture.q_values(own, obs)[e].t() for e in range(len(own[OUTPUT_BIAS]))]
        self.ensembles, self.weights = plain.improve(self.ensembles, self.weights, ensemble, beta, self.memory)

    def accumulated(self, obs: torch.Tensor) -> torch.Tensor:
        return plain.accumulated_logits(self.ensembles, self.weights, self.architecture.n_actions, obs)


def observations(architecture: Architecture, n: int = 9) -> torch.Tensor:
    if architecture.observation_space is BOARD:
        return torch.rand(n, 10, 10, 4) > 0.5
    return torch.randn(n, 5)


@pytest.mark.parametrize("memory", [1, 2, 7, CPU_BLOCK + 3, None])
@pytest.mark.parametrize(
    "architecture",
    [
        MLP,
        ConvMlp(VECTOR, 3, []),
        ConvMlp(BOARD, 4, [8], conv_arch=[(4, 3, 1)]),
        over_extractor(VECTOR, 3, TinyExtractor, {}, [5], nn.ReLU, True),
    ],
    ids=["mlp", "linear", "conv", "custom"],
)
def test_stack_equals_a_loop(architecture: Architecture, memory: int | None) -> None:
    """Over two wraps, with a β of its own at every push (an annealed entropy weight)."""
    torch.manual_seed(0)
    stack, plain = QStack(architecture, 2, memory), PlainStack(architecture, memory)
    obs = observations(architecture)
    pushes = 2 * memory + 2 if memory else CPU_BLOCK + 5
    for k in range(pushes):
        weights = random_weights(architecture, 2)
        beta = StepSize(2.0 - 1.6 * k / pushes, 20.0).beta
        stack.push(weights, beta)
        plain.push(weights, beta)
        if k < 4 or k >= pushes - 3:
            torch.testing.assert_close(stack.accumulated(obs), plain.accumulated(obs), rtol=1e-4, atol=1e-3)
    assert len(stack) == min(pushes, memory or pushes)


def test_m_1_is_softmax_of_q_over_tau() -> None:
    step, stack = StepSize(0.7, 20.0), QStack(MLP, 2, 1)
    obs = observations(MLP)
    for _ in range(3):
        weights = random_weights(MLP, 2)
        stack.push(weights, step.beta)
    stack.prefactor = step.alpha * memory_correction(step.beta, 1)
    q = MLP.q_values(weights, obs).mean(0).t()
    torch.testing.assert_close(
        stack.logits(stack.accumulated(obs)).softmax(-1).float(), (q / 0.7).softmax(-1), rtol=1e-4, atol=1e-6
    )


def test_a_push_copies_and_touches_nothing_else() -> None:
    stack, weights = QStack(MLP, 2, 3), random_weights(MLP, 2)
    stack.push(weights, 0.9)
    address = stack.blocks[0]["mlp.0.weight"].data_ptr()
    frozen = {name: w.clone() for name, w in stack.ensemble(stack.entries[0]).items()}
    for w in weights.values():
        w += 1.0
    stack.push(weights, 0.9)
    assert all(torch.equal(w, frozen[name]) for name, w in stack.ensemble(stack.entries[0]).items())
    assert stack.blocks[0]["mlp.0.weight"].data_ptr() == address


def test_without_a_limit_old_blocks_are_never_moved() -> None:
    stack = QStack(MLP, 1, None)
    stack.push(random_weights(MLP, 1), 0.9)
    address = stack.blocks[0]["mlp.0.weight"].data_ptr()
    for _ in range(2 * CPU_BLOCK):
        stack.push(random_weights(MLP, 1), 0.9)
    assert stack.blocks[0]["mlp.0.weight"].data_ptr() == address
    assert len(stack.blocks) == 3


def test_an_empty_stack_is_uniform() -> None:
    assert torch.count_nonzero(QStack(MLP, 2, 5).accumulated(observations(MLP))) == 0


def test_q_values_of_each_network_oldest_first() -> None:
    stack, pushed = QStack(MLP, 2, 3), []
    for _ in range(5):
        pushed.append(random_weights(MLP, 2))
        stack.push(pushed[-1], 0.5)
    obs = observations(MLP)
    q = stack.q_values(obs)
    assert q.shape == (3, 2, 3, 9)
    for i in range(3):
        torch.testing.assert_close(q[i], MLP.q_values(pushed[2 + i], obs))


@given(memory=st.integers(1, 6) | st.none(), pushes=st.integers(0, 15))
@settings(deadline=None, max_examples=40)
def test_the_ring_keeps_the_last_m(memory: int | None, pushes: int) -> None:
    """Property of the ring: push k is found under its number for exactly as long as it is kept."""
    architecture = ConvMlp(VECTOR, 2, [])
    stack = QStack(architecture, 1, memory)
    for k in range(pushes):
        stack.push({name: torch.full((1, *shape), float(k)) for name, shape in stack.shapes.items()}, 0.5)
    kept = list(range(max(0, pushes - (memory or pushes)), pushes))
    assert [(entry.first, entry.last) for entry in stack.entries] == [(k, k) for k in kept]
    assert [stack.ensemble(entry)["output.bias"][0, 0].item() for entry in stack.entries] == kept
    assert stack.relative_weights == [0.5 ** (pushes - 1 - k) for k in kept]


@pytest.mark.parametrize("pushes", [0, 2, 8])
@pytest.mark.parametrize("new_memory", [3, 5, None])
def test_state_round_trips_into_any_larger_limit(pushes: int, new_memory: int | None) -> None:
    """Also when the new ring would leave a gap between the slots of old pushes, and goes on from there."""
    stack, obs = QStack(MLP, 2, 3), observations(MLP)
    for _ in range(pushes):
        stack.push(random_weights(MLP, 2), 0.8)
    loaded = QStack(MLP, 2, new_memory)
    loaded.load_state_dict(stack.state_dict())
    if new_memory == 3:
        assert torch.equal(loaded.accumulated(obs), stack.accumulated(obs))
    torch.testing.assert_close(loaded.accumulated(obs), stack.accumulated(obs), rtol=1e-5, atol=1e-5)
    more: list[Any] = [random_weights(MLP, 2) for _ in range(4)]
    plain = PlainStack(MLP, new_memory)
    for entry in stack.entries:
        plain.push(stack.ensemble(entry), 0.8)
    for weights in more:
        loaded.push(weights, 0.8)
        plain.push(weights, 0.8)
    torch.testing.assert_close(loaded.accumulated(obs), plain.accumulated(obs), rtol=1e-4, atol=1e-4)


def test_a_smaller_limit_is_refused() -> None:
    stack = QStack(MLP, 2, 3)
    for _ in range(3):
        stack.push(random_weights(MLP, 2), 0.8)
    with pytest.raises(ValueError, match="memory_size=3 or more"):
        QStack(MLP, 2, 2).load_state_dict(stack.state_dict())


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
