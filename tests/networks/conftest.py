"""One network as torch.nn would compute it."""

from __future__ import annotations

import torch
from torch import nn

from staq.networks.architecture import OUTPUT_BIAS, OUTPUT_WEIGHT
from staq.networks.conv_mlp import ConvMlp


def plain_network(architecture: ConvMlp, weights: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """One network as torch.nn would compute it. [B, ...] → [B, A]"""

    def activated(layer: str, sums: torch.Tensor) -> torch.Tensor:
        if architecture.norm:
            norm = weights[f"{layer}.norm.weight"], weights[f"{layer}.norm.bias"]
            sums = nn.functional.layer_norm(sums, sums.shape[-1:], *norm)
        activation: torch.Tensor = architecture.activation(sums)
        return activation

    x = architecture.preprocessed(x)
    if architecture.conv_arch:
        x = x.permute(0, 3, 1, 2) if architecture.channels_last else x
        for i, (filters, kernel, stride) in enumerate(architecture.conv_arch):
            kernel_weights = weights[f"conv.{i}.weight"].view(kernel, kernel, -1, filters).permute(3, 2, 0, 1)
            x = nn.functional.conv2d(x, kernel_weights, weights[f"conv.{i}.bias"], stride=stride)
            x = activated(f"conv.{i}", x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        x = x.permute(0, 2, 3, 1)
    x = x.flatten(1)
    for i in range(len(architecture.net_arch)):
        x = activated(f"mlp.{i}", nn.functional.linear(x, weights[f"mlp.{i}.weight"].t(), weights[f"mlp.{i}.bias"]))
    return nn.functional.linear(x, weights[OUTPUT_WEIGHT], weights[OUTPUT_BIAS])
