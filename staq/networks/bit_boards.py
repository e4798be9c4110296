"""Convolutions over boards of bits by a kernel that adds up weights where a bit is set (``kernels/bit_boards.c``)."""

from __future__ import annotations

import math

import torch

from staq.networks import kernels

FILTERS, MAX_INPUTS = 16, 4096


def suits(boards: torch.Tensor, filters: int) -> bool:
    """Whether the kernel can convolve boards [B, ...] with so many filters."""
    fits = filters == FILTERS and math.prod(boards.shape[1:]) <= MAX_INPUTS and boards.device.type == "cpu"
    return fits and kernels.load("bit_boards") is not None


def convolved(
    boards: torch.Tensor,
    size: int,
    weight: torch.Tensor,
    bias: torch.Tensor,
    rectify: bool,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """boards ∗ weight + bias, or its positive part, of N networks. [B, H, W, C] → [N, B·H'·W', 16]"""
    n, height, width, _ = boards.shape
    if out is None:
        out = weight.new_empty(len(weight), n * (height - size + 1) * (width - size + 1), FILTERS)
    _call("forward", boards, size, weight, weight, bias, out, rectify)
    return out


def weight_gradients(
    boards: torch.Tensor, size: int, weight: torch.Tensor, activation: torch.Tensor, error: torch.Tensor, rectify: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Of weight and bias, from the error by the activation or, unless it was rectified, by the sums."""
    n_networks, inputs, filters = weight.shape
    sums = weight.new_empty(torch.get_num_threads(), n_networks, inputs + 1, filters)
    _call("backward", boards, size, weight, activation, error, sums, rectify)
    total = sums.sum(0) if len(sums) > 1 else sums[0]
    return total[:, :-1], total[:, -1]


def reached(boards: torch.Tensor, size: int) -> torch.Tensor:
    """Whether any bit of each patch is set. [B, H, W, C] → uint8 [B, H'·W']"""
    kernel, boards = kernels.load("bit_boards"), boards.contiguous()
    n, height, width, _ = boards.shape
    found = torch.empty(n, (height - size + 1) * (width - size + 1), dtype=torch.uint8)
    assert kernel is not None
    kernels.call(kernel.reached, boards, *boards.shape, size, found, torch.get_num_threads())
    return found


def _call(
    function: str, boards: torch.Tensor, size: int, weight: torch.Tensor, *arguments: torch.Tensor | bool
) -> None:
    kernel, boards = kernels.load("bit_boards"), boards.contiguous()
    kernels.call(
        getattr(kernel, function), boards, *boards.shape, size, len(weight), *arguments, torch.get_num_threads()
    )
