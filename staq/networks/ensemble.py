"""The networks that learn."""

from __future__ import annotations

import torch
from torch import nn

from staq.networks.architecture import OUTPUT_BIAS, Architecture


class QEnsemble(nn.Module):
    """E networks with their own weights, as trainable parameters [E, ...]."""

    def __init__(self, architecture: Architecture, n_networks: int) -> None:
        super().__init__()
        self.architecture = architecture
        networks = [architecture.initial_weights() for _ in range(n_networks)]
        self.names = list(networks[0])
        for name in self.names:
            stacked = torch.stack([network[name] for network in networks])
            self.register_parameter(_attribute(name), nn.Parameter(stacked, name not in architecture.fixed))

    @property
    def device(self) -> torch.device:
        return self.weights[OUTPUT_BIAS].device

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        return {name: getattr(self, _attribute(name)) for name in self.names}

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        """q of each network. → [E, A, B]"""
        return self.architecture.q_values(self.weights, obs)


def _attribute(name: str) -> str:
    return name.replace(".", "__")  # a parameter's name must not contain dots
