"""Batched convolutions and layers against the same networks one by one, and boards without repetition."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from staq.networks.conv_mlp import ConvMlp, Distinct, distinct_rows
from staq.networks.ensemble import QEnsemble
from tests.conftest import BOARD, VECTOR, random_weights
from tests.networks.conftest import plain_network

SCREEN = spaces.Box(0, 255, (4, 84, 84), dtype=np.uint8)
ATARI = [(32, 8, 4), (64, 4, 2), (64, 3, 1)]


@pytest.mark.parametrize(
    ("space", "conv_arch", "net_arch", "channels_last"),
    [
        (VECTOR, [], [8], True),
        (VECTOR, [], [8, 7, 6, 5], True),
        (VECTOR, [], [], True),
        (BOARD, [(16, 3, 1)], [32], True),
        (BOARD, [(3, 2, 2), (5, 3, 1)], [], True),
        (SCREEN, ATARI, [64], False),
        (spaces.Discrete(7), [], [8], True),
        (spaces.MultiBinary(6), [], [8], True),
    ],
)
def test_batched_equals_one_by_one(
    space: spaces.Space[Any], conv_arch: Any, net_arch: list[int], channels_last: bool
) -> None:
    torch.manual_seed(0)
    architecture = ConvMlp(space, 3, net_arch, conv_arch=conv_arch, channels_last=channels_last)
    space.seed(0)
    weights = random_weights(architecture, 4)
    obs = torch.as_tensor(np.stack([space.sample() for _ in range(6)]))
    q = architecture.q_values(weights, obs)
    assert q.shape == (4, 3, 6)
    for i in range(4):
        one = plain_network(architecture, {name: w[i] for name, w in weights.items()}, obs)
        torch.testing.assert_close(q[i].t(), one, rtol=1e-4, atol=1e-4)


def test_hidden_layers_have_pytorchs_default_initialisation() -> None:
    """Uniform within 1/√fan_in, as nn.Linear and nn.Conv2d have it."""
    torch.manual_seed(0)
    weight = ConvMlp(BOARD, 3, [256], conv_arch=[(16, 3, 1)]).initial_weights()["mlp.0.weight"]
    assert weight.shape == (1024, 256)
    assert weight.abs().max().item() == pytest.approx(1 / 32, rel=1e-3)
    reference = nn.Linear(1024, 256).weight
    assert weight.std().item() == pytest.approx(reference.std().item(), rel=0.01)


def test_images_are_scaled_and_boards_are_not() -> None:
    screen = ConvMlp(SCREEN, 2, [4], conv_arch=ATARI, channels_last=False)
    assert screen.preprocessed(torch.full((1, 4, 84, 84), 255, dtype=torch.uint8)).max() == 1.0
    assert ConvMlp(BOARD, 2, [4]).preprocessed(torch.ones(1, 10, 10, 4, dtype=torch.bool)).max() == 1.0


def test_kernels_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="kernel size 12"):
        ConvMlp(BOARD, 3, [8], conv_arch=[(4, 12, 1)])
    with pytest.raises(ValueError, match="MlpPolicy"):
        ConvMlp(VECTOR, 3, [8], conv_arch=[(4, 3, 1)])


@pytest.mark.parametrize("inputs", [9, 52, 54, 90, 130])
def test_rows_of_bits_without_repetition(inputs: int) -> None:
    torch.manual_seed(0)
    known = torch.rand(7, inputs) > 0.5
    bits = known[torch.randint(0, 7, (100,))]
    bits[50:] = bits[50:].flip(-1)  # rows that differ in the last bits only, or the first
    found = distinct_rows(bits)
    assert found is not None
    rows, places = found
    assert len(rows) == len({tuple(row.tolist()) for row in bits})
    assert torch.equal(rows[places], bits)
    assert distinct_rows(torch.rand(100, inputs) > 0.5) is None or inputs == 9, "of all different rows nothing is won"


def test_two_rows_that_look_alike_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of 60 bits are two numbers in one key; were keys to coincide, nothing would be lost but time."""
    bits = torch.zeros(40, 60, dtype=torch.bool)
    bits[20:, 55] = True
    monkeypatch.setattr(torch.Tensor, "unique", lambda key, return_inverse: (key[:1], torch.zeros_like(key)))
    assert distinct_rows(bits) is None


@pytest.mark.parametrize("channels", [4, 10])
@pytest.mark.parametrize("conv_arch", [[(5, 3, 1)], [(5, 4, 3), (3, 2, 1)]], ids=str)
def test_boards_of_few_patches_give_the_same(channels: int, conv_arch: Any) -> None:
    torch.manual_seed(0)
    architecture = ConvMlp(spaces.Box(0, 1, (10, 10, channels), bool), 3, [6], conv_arch=conv_arch)
    networks = QEnsemble(architecture, 4)
    boards = torch.rand(20, 10, 10, channels) > 0.997
    features = architecture.features(boards)
    few, plain = architecture.inputs_of_many(features), architecture.inputs(features)
    assert isinstance(few, Distinct)
    assert few.rows.shape[1] < plain[0, ..., 0].numel() / 2
    torch.testing.assert_close(architecture.hidden(networks.weights, few), architecture.hidden(networks.weights, plain))
    diverse = architecture.inputs_of_many(architecture.features(torch.rand(20, 10, 10, channels) > 0.5))
    assert isinstance(diverse, torch.Tensor)
