"""The least time that one environment step can take: its arithmetic at the speed of a large matrix product."""

from __future__ import annotations

import math
import time

import torch

from staq.experiments.timing import BATCH_SIZE, BUFFER_SIZE, INTERVAL, N_CRITICS, WINDOW, network
from staq.networks.conv_mlp import ConvMlp


def gemm_rate(n_threads: int) -> float:
    """FLOP/s of the best square float32 product."""
    before = torch.get_num_threads()
    torch.set_num_threads(n_threads)
    best = 0.0
    for size in (768, 1024, 1536, 2048):
        a, b, out = torch.randn(size, size), torch.randn(size, size), torch.empty(size, size)
        for _ in range(12):
            start = time.perf_counter()
            torch.mm(a, b, out=out)
            best = max(best, 2 * size**3 / (time.perf_counter() - start))
    torch.set_num_threads(before)
    return best


def forward_flops(architecture: ConvMlp) -> tuple[int, int]:
    """Of one network and one observation, two per multiplication: (all layers, the first alone)."""
    layers = []
    for name, (inputs, outputs) in architecture.trunk_shapes.items():
        layers.append(2 * inputs * outputs * (math.prod(architecture.first_size) if name.startswith("conv") else 1))
    layers.append(2 * architecture.hidden_size * architecture.n_actions)
    return sum(layers), layers[0]


def step_flops(env_id: str, memory_size: int) -> dict[str, float]:
    """Of one environment step at the paper's settings, stack and replay full."""
    forward, first = forward_flops(network(env_id))
    # Backwards every layer costs twice its forward pass, but for the first, whose input needs no gradient.
    gradient = BATCH_SIZE * N_CRITICS * (3 * forward - first)
    distinct = BUFFER_SIZE * (1 - (1 - 1 / BUFFER_SIZE) ** (WINDOW * BATCH_SIZE)) / WINDOW
    return {
        "gradient": gradient,
        "targets": distinct * N_CRITICS * forward,
        "refresh": 2 * N_CRITICS * forward * BUFFER_SIZE / INTERVAL,
        "stack row": memory_size * N_CRITICS * forward,
    }
