"""The way back through the layer above a convolution over boards, where empty patches are all alike.

Forward, a plain product is as fast (``kernels/board_layer.c``).
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


def differentiate(
    x: torch.Tensor,
    reached: torch.Tensor,
    weight: torch.Tensor,
    above: torch.Tensor,
    weight_grad: torch.Tensor,
    error: torch.Tensor,
) -> Callable[[], None]:
    """Fills the gradient of the weights and the error by x: of patches that are empty at a place, one has the sum.

    → a call on these tensors, which may then change and be called for again
    """
    kernel, sizes = kernels.load("board_layer"), (len(weight), *reached.shape, weight.shape[-1])
    assert kernel is not None
    arguments = x, reached, *sizes, weight, above, weight_grad, error
    return kernels.bound(kernel.backward, *arguments, torch.get_num_threads())
