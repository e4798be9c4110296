"""The layer above a convolution over boards, where empty patches are all alike (``kernels/board_layer.c``).

Functions return a call on the tensors they are given, which may then change and be called for again.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from staq.networks import kernels

COLUMNS = 64
"""Of which a layer's width must be a multiple."""


def suits(weight: torch.Tensor) -> bool:
    """Whether the kernel takes weights [N, inputs, outputs]; what it sees is 16 filters at every place."""
    fits = weight.shape[-1] % COLUMNS == 0 and weight.is_contiguous()
    return fits and weight.device.type == "cpu" and kernels.load("board_layer") is not None


def multiply(
    x: torch.Tensor, reached: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, out: torch.Tensor
) -> Callable[[], None]:
    """out = x W + b, of which nothing is computed twice. [N, B, inputs], [B, places] → [N, B, outputs]"""
    return _bound("forward", x, reached, weight, bias, out)


def differentiate(
    x: torch.Tensor,
    reached: torch.Tensor,
    weight: torch.Tensor,
    above: torch.Tensor,
    weight_grad: torch.Tensor,
    error: torch.Tensor,
) -> Callable[[], None]:
    """Fills the gradient of the weights and the error by x: of patches that are empty at a place, one has the sum."""
    return _bound("backward", x, reached, weight, above, weight_grad, error)


def _bound(
    function: str, x: torch.Tensor, reached: torch.Tensor, weight: torch.Tensor, *tensors: torch.Tensor
) -> Callable[[], None]:
    kernel, sizes = kernels.load("board_layer"), (len(weight), *reached.shape, weight.shape[-1])
    arguments = x, reached, *sizes, weight, *tensors
    return kernels.bound(getattr(kernel, function), *arguments, torch.get_num_threads())
