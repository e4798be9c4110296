"""A convolution over boards of bits and the layer above it, where patches that are alike are computed once.

By a kernel (``kernels/boards.c``). Functions return a call on the tensors they are given, which may then change and be
called for again.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch

from staq.networks import kernels
from staq.networks.layer_norm import EPSILON

FILTERS, COLUMNS = 16, 64
"""How many filters the convolution has, and of what the width of the layer above must be a multiple."""
MAX_BITS = 128
"""Of a patch, and of a row of a board."""

Layer = tuple[torch.Tensor, torch.Tensor]
"""Weight and bias of N networks, or gain and shift."""


def suits(shape: tuple[int, ...], convolution: tuple[int, int, int], width: int, device: torch.device) -> bool:
    """Whether the kernel takes boards [H, W, C], such a convolution (filters, size, stride) and such a layer above."""
    filters, size, stride = convolution
    _, columns, channels = shape
    fits = filters == FILTERS and stride == 1 and width % COLUMNS == 0
    fits = fits and max(size * size, columns) * channels <= MAX_BITS
    return fits and device.type == "cpu" and kernels.load("boards") is not None


class DistinctPatches:
    """Which patches a batch of boards has at every place, and which board has which.

    :param boards: bool [B, H, W, C], contiguous
    """

    def __init__(self, boards: torch.Tensor, size: int) -> None:
        n, height, width, channels = boards.shape
        self.places = (height - size + 1) * (width - size + 1)
        self.n_boards, self.inputs, threads = n, size * size * channels, torch.get_num_threads()
        bits = torch.empty(self.places, n, 2, dtype=torch.long)  # numbers of 128 bits
        counts, shared = torch.empty(self.places, dtype=torch.int), torch.empty(self.places, n, dtype=torch.int)
        self.tensors = bits, counts, shared
        slots = 1 << (2 * n - 1).bit_length()
        room = torch.empty(n, height, 2, dtype=torch.long), torch.empty(threads, slots, dtype=torch.int)
        given = boards, *boards.shape, size, *self.tensors, *room, slots, threads
        self.find = kernels.bound(_kernel().find, *given)

    def rows(self, width: int) -> torch.Tensor:
        """Room for every thread's numbers of every patch."""
        return torch.empty(torch.get_num_threads(), self.places, self.n_boards, width)

    @property
    def sizes(self) -> tuple[int, int, int]:
        return self.n_boards, self.places, self.inputs


def sums_above(
    patches: DistinctPatches,
    filters: Layer,
    norm: Layer | None,
    layer: Layer,
    out: torch.Tensor,
    kept: tuple[torch.Tensor | None, ...] = (None, None, None),
) -> Callable[[], None]:
    """out = activation · weight + bias of the layer above, [N, B, outputs].

    :param kept: filled with what the way back needs of distinct patches [N, places, B, 16]: their activation and, where
        there is a norm, what is normalised and its precision
    """
    (weight, bias), (gain, shift) = layer, norm or (None, None)
    sizes, room = (*patches.sizes, weight.shape[-1]), (patches.rows(FILTERS), patches.rows(COLUMNS))
    convolution = len(weight), *filters, gain, shift, EPSILON, room[0], *kept
    arguments = *sizes, *patches.tensors, *convolution, weight, bias, out, room[1]
    return kernels.bound(_kernel().forward, *arguments, torch.get_num_threads())


def differentiate(
    patches: DistinctPatches,
    kept: tuple[torch.Tensor | None, ...],
    gain: torch.Tensor | None,
    weight: torch.Tensor,
    error: torch.Tensor,
    weight_grad: torch.Tensor,
    sums: torch.Tensor,
) -> Callable[[], None]:
    """Fills gradients from the error by the sums above [N, B, outputs].

    :param sums: each thread's part of those of filters, bias, gain and shift [threads, N, inputs + 3, 16]
    """
    room = torch.empty(torch.get_num_threads(), patches.n_boards + 24, weight.shape[-1])
    sizes = *patches.sizes, weight.shape[-1]
    arguments = *sizes, *patches.tensors, len(weight), *kept, gain, weight, error, weight_grad, sums, room
    return kernels.bound(_kernel().backward, *arguments, torch.get_num_threads())


def _kernel() -> ctypes.CDLL:
    kernel = kernels.load("boards")
    assert kernel is not None
    return kernel
