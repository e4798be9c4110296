"""How much is evaluated at once: as much as a device has room for close to its arithmetic."""

from __future__ import annotations

from collections.abc import Iterator

import torch

CPU_CHUNK, GPU_CHUNK = 256, 16_384
"""Observations per forward pass. A CPU is fast while activations stay in its cache, a GPU while it has much to do."""
CPU_BLOCK, GPU_BLOCK = 10, 100
"""Frozen ensembles per forward pass, for the same reason: 10 pairs of the paper's networks and 50 observations fit in a
CPU's cache, which is worth a quarter of the time over evaluating 300 pairs at once. The GPU's is a guess: none was
at hand."""


def chunk_size(device: torch.device) -> int:
    return CPU_CHUNK if device.type == "cpu" else GPU_CHUNK


def block_size(device: torch.device) -> int:
    return CPU_BLOCK if device.type == "cpu" else GPU_BLOCK


def chunks(n: int, device: torch.device) -> Iterator[slice]:
    """Slices of n rows, each as long as a forward pass on the device should be."""
    size = chunk_size(device)
    return (slice(start, min(start + size, n)) for start in range(0, n, size))
