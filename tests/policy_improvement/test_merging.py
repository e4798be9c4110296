"""Merging neighbours: exact where it can be, measured where it cannot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from staq.actions import Factors
from staq.experience.states import States
from staq.networks.architecture import OUTPUT_BIAS, OUTPUT_WEIGHT, Architecture
from staq.networks.conv_mlp import ConvMlp
from staq.networks.stacked_module import over_extractor
from staq.policy_improvement import merging
from staq.policy_improvement.merging import Merging, averaged, merge, pair_due, ridge, span_norm, split
from staq.policy_improvement.mirror_descent import kl_divergence
from staq.policy_improvement.q_stack import QStack
from tests.conftest import BOARD, VECTOR, TinyExtractor, random_weights

ARCHITECTURES: list[Architecture] = [
    ConvMlp(VECTOR, 3, [8]),
    ConvMlp(VECTOR, Factors([3, 2]), [8, 8], norm="layer"),
    ConvMlp(BOARD, 4, [8], conv_arch=[(16, 3, 1)], norm="layer"),
    over_extractor(VECTOR, 3, TinyExtractor, {}, [5], nn.ReLU, True),
]
IDS = ["mlp", "factored norm", "conv norm", "module"]


def observations(architecture: Architecture, n: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(n)
    shape = architecture.observation_space.shape
    assert shape is not None
    drawn = torch.randn(n, *shape, generator=generator)
    return drawn > 0 if architecture.observation_space is BOARD else drawn


def states_of(stack: QStack, n: int = 300) -> States:
    obs, factors = observations(stack.architecture, n), stack.architecture.factors
    return States(
        obs,
        lambda: torch.empty(0),
        lambda rows: factors.log_softmax(stack.logits(stack.accumulated(obs[rows]))),
        lambda n: torch.empty(0),
    )


def accumulated(architecture: Architecture, members: Sequence[Any], weights: Sequence[float], obs: Any) -> torch.Tensor:
    stack = QStack(architecture, len(members[0][OUTPUT_BIAS]), None)
    stack.restore(len(members), weights, 1.0, members)
    return stack.accumulated(obs)


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=IDS)
@pytest.mark.parametrize("n_critics", [1, 2])
def test_networks_on_one_trunk_merge_to_rounding(architecture: Architecture, n_critics: int) -> None:
    """Their sum is a network on that trunk: its output layer is the members' mean, and the fit finds nothing to add."""
    torch.manual_seed(0)
    first = random_weights(architecture, n_critics)
    second = first | {name: torch.randn_like(w) for name, w in first.items() if name in (OUTPUT_WEIGHT, OUTPUT_BIAS)}
    obs, other = observations(architecture, 200), observations(architecture, 50)
    merged = merge(architecture, [first, second], [0.7, 1.0], obs, other)
    assert merged.change.abs().max() < 1e-4
    torch.testing.assert_close(
        accumulated(architecture, [merged.weights], [1.7], other),
        accumulated(architecture, [first, second], [0.7, 1.0], other),
        rtol=1e-4,
        atol=1e-4,
    )


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=IDS)
def test_equal_neighbours_merge_to_themselves(architecture: Architecture) -> None:
    torch.manual_seed(0)
    member = random_weights(architecture, 2)
    obs, other = observations(architecture, 90), observations(architecture, 40)
    merged = merge(architecture, [member] * 3, [0.5, 0.7, 1.0], obs, other)
    for name, w in member.items():
        torch.testing.assert_close(merged.weights[name], w, rtol=1e-4, atol=1e-4)
    assert merged.change.abs().max() < 1e-4


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=IDS)
def test_the_reported_change_is_that_of_the_stack(architecture: Architecture) -> None:
    """Of unlike networks, whose merge is bad: the refit makes it better on states that it has not seen."""
    torch.manual_seed(0)
    members, weights = [random_weights(architecture, 2) for _ in range(2)], [0.8, 1.0]
    obs, other = observations(architecture, 1500), observations(architecture, 400)
    merged = merge(architecture, members, weights, obs, other)
    wanted = accumulated(architecture, members, weights, other)
    found = accumulated(architecture, [merged.weights], [1.8], other)
    torch.testing.assert_close(found - wanted, merged.change, rtol=1e-3, atol=1e-3)
    plain = accumulated(architecture, [averaged(members, [0.8 / 1.8, 1.0 / 1.8])], [1.8], other)
    assert (found - wanted).square().mean() < 0.8 * (plain - wanted).square().mean()


def test_the_mean_is_weighted() -> None:
    mean = averaged([{"w": torch.tensor([1.0])}, {"w": torch.tensor([3.0])}], [0.25, 0.75])
    assert mean["w"].tolist() == [2.5]


def test_ridge_against_least_squares() -> None:
    """A penalty is a set of extra rows; the intercept has none."""
    rng = np.random.default_rng(0)
    x, y, relative = rng.normal(size=(50, 4)) + 2, rng.normal(size=(50, 3)), 0.1
    slopes, intercept = ridge(torch.tensor(x), torch.tensor(y), relative)
    centred = x - x.mean(0)
    penalty = np.sqrt(relative * (centred**2).mean() * len(x))
    rows = np.vstack([np.hstack([centred, np.ones((50, 1))]), np.hstack([penalty * np.eye(4), np.zeros((4, 1))])])
    expected = np.linalg.lstsq(rows, np.vstack([y, np.zeros((4, 3))]))[0]
    np.testing.assert_allclose(slopes, expected[:4], rtol=1e-9)
    np.testing.assert_allclose(intercept, expected[4] - x.mean(0) @ expected[:4], rtol=1e-9)


def test_ridge_of_features_that_are_all_zero() -> None:
    slopes, intercept = ridge(torch.zeros(9, 4).double(), torch.ones(9, 2).double(), 1e-3)
    assert slopes.tolist() == [[0.0, 0.0]] * 4
    assert intercept.tolist() == [1.0, 1.0]


def histogram(pushes: int) -> list[int]:
    sizes: list[int] = []
    for _ in range(pushes):
        while (start := pair_due(sizes, len(sizes))) is not None:
            sizes[start : start + 2] = [2 * sizes[start]]
        sizes.append(1)
    return sizes


@given(st.integers(0, 3000))
@settings(deadline=None, max_examples=30)
def test_sizes_of_the_histogram(pushes: int) -> None:
    sizes = histogram(pushes)
    assert sum(sizes) == pushes
    assert sizes == sorted(sizes, reverse=True)
    assert all(size & (size - 1) == 0 for size in sizes)
    most = merging.PER_SIZE
    assert all(sizes.count(size) <= most + (size == 1) for size in sizes)
    assert len(sizes) <= 1 + most * np.log2(pushes / (most - 1) + 2)
    assert sizes[-most:] == [1] * min(pushes, most)


def test_the_histogram_by_hand() -> None:
    assert [histogram(k) for k in (4, 5, 6, 8, 14)] == [
        [1, 1, 1, 1],
        [1, 1, 1, 1, 1],
        [2, 1, 1, 1, 1],
        [2, 2, 1, 1, 1, 1],
        [4, 2, 2, 2, 1, 1, 1, 1],
    ]


def test_states_to_fit_and_to_measure_are_apart() -> None:
    for n in (1, 2, 7, 300, 3000, 50_000):
        fit, test = split(n)
        assert len(test) >= 1
        assert not set(fit.tolist()) & set(test.tolist())
        assert len(fit) + len(test) == min(n, 1500)
        assert max(fit.tolist() + test.tolist()) < n
    assert [len(rows) for rows in split(50_000)] == [1000, 500]


def test_span_norm_by_hand() -> None:
    """Of 200 states the worst two count."""
    change = torch.zeros(200, 4)
    change[:3] = torch.tensor([[0.0, 3.0, 1.0, 5.0], [1.0, 1.0, 0.0, 0.0], [9.0, 9.0, 9.0, 9.5]])
    assert span_norm(change, Factors([4])) == pytest.approx(np.sqrt((25 + 1) / 2))
    assert span_norm(change, Factors([2, 2])) == pytest.approx(np.sqrt((9 + 16 + 0.25) / 2))


def pushed(architecture: Architecture, n: int, apart: float) -> QStack:
    """n networks, each a little step from the one before."""
    torch.manual_seed(0)
    stack, weights = QStack(architecture, 2, None), random_weights(architecture, 2)
    for _ in range(n):
        weights = {name: w + apart * torch.randn_like(w) for name, w in weights.items()}
        stack.push(weights, 0.95)
    stack.prefactor = 0.1
    return stack


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=IDS)
def test_what_moves_the_policy_too_far_is_left_for_later(architecture: Architecture) -> None:
    """A pair of two pushes is tried again after two pushes, and the other entries are as they were."""
    stack, schedule = pushed(architecture, 5, 0.5), Merging()
    schedule.movements.append(1e-12)
    before = stack.state()
    schedule.merge_due(stack, states_of(stack), 0.1)
    assert len(stack) == 5
    assert schedule.refused == {0: 7}
    after = stack.state()
    assert all(torch.equal(w, after["networks"][name]) for name, w in before["networks"].items())
    assert schedule.distance == schedule.last_kl == 0.0
    schedule.movements[0] = 1e12
    schedule.merge_due(stack, states_of(stack), 0.1)
    assert len(stack) == 5  # not yet
    for _ in range(2):
        stack.push(random_weights(architecture, 2), 0.95)
    schedule.merge_due(stack, states_of(stack), 0.1)
    assert [entry.n_pushes for entry in stack.entries] == [2, 2, 1, 1, 1]
    assert schedule.refused == {}


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=IDS)
def test_a_merge_moves_the_policy_as_far_as_it_says(architecture: Architecture) -> None:
    stack, schedule = pushed(architecture, 5, 0.02), Merging()
    schedule.movements.append(1e12)
    states, factors = states_of(stack), architecture.factors
    _, test = split(len(states))
    before = states.log_pi_at(test)
    schedule.merge_due(stack, states, 0.1)
    assert [entry.n_pushes for entry in stack.entries] == [2, 1, 1, 1]
    after = states_of(stack).log_pi_at(test)
    assert schedule.last_kl == pytest.approx(kl_divergence(before, after).mean().item(), rel=0.02)
    assert 0 < schedule.last_kl < schedule.kl_bound(stack.prefactor)
    assert factors.softmax(after).sum() == pytest.approx(len(test) * len(factors.sizes))


def test_merged_slots_stay_dense_and_the_sum_is_that_of_the_entries() -> None:
    """Whatever is merged: the same as a stack into which the entries were put in order."""
    architecture = ConvMlp(VECTOR, 3, [8])
    stack, obs = pushed(architecture, 25, 0.1), observations(architecture, 9)
    rng = np.random.default_rng(0)
    while len(stack) > 1:
        start = int(rng.integers(len(stack) - 1))
        stop = int(rng.integers(start + 2, min(len(stack), start + 4) + 1))
        stack.merge(start, stop, random_weights(architecture, 2))
        assert sorted(entry.slot for entry in stack.entries) == list(range(len(stack)))
        members = [{name: w.clone() for name, w in stack.ensemble(entry).items()} for entry in stack.entries]
        expected = accumulated(architecture, members, stack.relative_weights, obs)
        torch.testing.assert_close(stack.accumulated(obs), expected, rtol=1e-4, atol=1e-4)
        if rng.random() < 0.3:
            stack.push(random_weights(architecture, 2), 0.9)
    assert stack.entries[0].first == 0
    assert stack.entries[-1].last == stack.n_pushed - 1


def test_a_merged_stack_round_trips_with_its_slots() -> None:
    architecture = ConvMlp(spaces.Box(-1, 1, (5,)), 3, [8])
    stack, obs = pushed(architecture, 12, 0.1), observations(architecture, 9)
    stack.merge(0, 2, random_weights(architecture, 2))
    stack.merge(3, 5, random_weights(architecture, 2))
    loaded = QStack(architecture, 2, None)
    loaded.load_state_dict(stack.state_dict())
    assert loaded.entries == stack.entries
    assert torch.equal(loaded.accumulated(obs), stack.accumulated(obs))
