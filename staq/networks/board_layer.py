"""The layer above a convolution over boards, where empty patches are all alike (``kernels/board_layer.c``)."""

from __future__ import annotations

import torch

from staq.networks import kernels

COLUMNS = 64
"""Of which a layer's width must be a multiple."""


def suits(weight: torch.Tensor) -> bool:
    """Whether the kernel takes weights [N, inputs, outputs]; what it sees is 16 filters at every place."""
    fits = weight.shape[-1] % COLUMNS == 0 and weight.is_contiguous()
    return fits and weight.device.type == "cpu" and kernels.load("board_layer") is not None


def sums(
    x: torch.Tensor, reached: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, out: torch.Tensor | None = None
) -> torch.Tensor:
    """x W + b, of which nothing is computed twice. [N, B, inputs], [B, places] → [N, B, outputs]"""
    if out is None:
        out = weight.new_empty(len(weight), *reached.shape[:1], weight.shape[-1])
    kernel, sizes = kernels.load("board_layer"), (len(weight), *reached.shape, weight.shape[-1])
    assert kernel is not None
    kernels.call(kernel.forward, x, reached, *sizes, weight, bias, out, torch.get_num_threads())
    return out


def gradients(
    x: torch.Tensor,
    reached: torch.Tensor,
    weight: torch.Tensor,
    above: torch.Tensor,
    weight_grad: torch.Tensor,
    error: torch.Tensor,
) -> None:
    """Fills the gradient of the weights and the error by x: of patches that are empty at a place, one has the sum."""
    kernel, sizes = kernels.load("board_layer"), (len(weight), *reached.shape, weight.shape[-1])
    assert kernel is not None
    kernels.call(kernel.backward, x, reached, *sizes, weight, above, weight_grad, error, torch.get_num_threads())
