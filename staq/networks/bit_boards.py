"""Convolutions over boards of bits by a kernel that adds up weights where a bit is set (``kernels/bit_boards.c``).

Functions return a call on the tensors they are given, which may then change and be called for again.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from staq.networks import kernels

FILTERS, MAX_INPUTS = 16, 4096


def suits(boards: torch.Tensor, filters: int) -> bool:
    """Whether the kernel can convolve boards [B, ...] with so many filters."""
    fits = filters == FILTERS and math.prod(boards.shape[1:]) <= MAX_INPUTS and boards.device.type == "cpu"
    return fits and kernels.load("bit_boards") is not None


def n_places(boards: torch.Tensor, size: int) -> int:
    """H'·W', how many patches a board has."""
    _, height, width, _ = boards.shape
    return (height - size + 1) * (width - size + 1)


def convolve(
    boards: torch.Tensor, size: int, weight: torch.Tensor, bias: torch.Tensor, out: torch.Tensor, rectify: bool
) -> Callable[[], None]:
    """out = boards ∗ weight + bias, or its positive part, of N networks. [B, H, W, C] → [N, B·H'·W', 16]"""
    return _bound("forward", boards, size, len(weight), weight, bias, out, rectify)


def differentiate(
    boards: torch.Tensor, size: int, activation: torch.Tensor, error: torch.Tensor, sums: torch.Tensor, rectified: bool
) -> Callable[[], None]:
    """Sums over boards for the gradients, from the error by the activation or, unless it is rectified, by the sums.

    → [threads, N, k·k·C + 1, 16], of the bias last
    """
    return _bound("backward", boards, size, len(activation), activation, error, sums, rectified)


def find_reached(boards: torch.Tensor, size: int, out: torch.Tensor) -> Callable[[], None]:
    """Whether any bit of each patch is set. [B, H, W, C] → uint8 [B, H'·W']"""
    return _bound("reached", boards, size, out)


def _bound(function: str, boards: torch.Tensor, *arguments: torch.Tensor | int) -> Callable[[], None]:
    kernel = kernels.load("bit_boards")
    assert boards.is_contiguous()
    return kernels.bound(getattr(kernel, function), boards, *boards.shape, *arguments, torch.get_num_threads())
