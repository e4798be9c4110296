"""Batched convolutions and layers against the same networks one by one, and the fast ways against the plain one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from staq.networks.conv_mlp import ConvMlp
from staq.networks.ensemble import QEnsemble
from tests.conftest import BOARD, VECTOR, random_weights
from tests.networks.conftest import plain_network

SCREEN = spaces.Box(0, 255, (4, 84, 84), dtype=np.uint8)
ATARI = [(32, 8, 4), (64, 4, 2), (64, 3, 1)]


@pytest.mark.parametrize("norm", [None, "layer"])
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
    space: spaces.Space[Any], conv_arch: Any, net_arch: list[int], channels_last: bool, norm: Any
) -> None:
    torch.manual_seed(0)
    architecture = ConvMlp(space, 3, net_arch, conv_arch=conv_arch, channels_last=channels_last, norm=norm)
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


@pytest.mark.parametrize("norm", [None, "layer"])
@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize("conv_arch", [[(16, 3, 1)], [(5, 4, 3), (3, 2, 1)], [(16, 3, 1), (3, 2, 1)]], ids=str)
def test_networks_that_nobody_differentiates_give_the_same(conv_arch: Any, channels_last: bool, norm: Any) -> None:
    """Boards of bits, as a kernel takes them, and as the floats that VecNormalize makes of them."""
    torch.manual_seed(0)
    shape = (10, 10, 4) if channels_last else (4, 10, 10)
    architecture = ConvMlp(
        spaces.Box(0, 1, shape, bool), 3, [64], conv_arch=conv_arch, channels_last=channels_last, norm=norm
    )
    networks = QEnsemble(architecture, 4)
    with torch.no_grad():
        for weight in networks.weights.values():
            weight += 0.5 * torch.randn_like(weight)
    boards = torch.rand(20, *shape) > 0.95
    expected = networks(boards).detach()
    for seen in (boards, boards.float()):
        found = architecture.frozen_q_values(networks.weights, seen)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
