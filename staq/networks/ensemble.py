"""The networks that learn."""

from __future__ import annotations

import torch
from torch import nn

from staq.networks.architecture import OUTPUT_BIAS, Architecture
from staq.networks.stacked_module import StackedModule


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

    @property
    def features_extractor(self) -> nn.Module:
        """SB3's name: the features extractor of the first network, if there is one, to look at."""
        if not isinstance(self.architecture, StackedModule):
            raise AttributeError("This network has convolutions and layers of its own, and no features extractor.")
        found = self.architecture.module_of(self.weights)[0]  # type: ignore[index]  # the layers come after it
        assert isinstance(found, nn.Module)
        return found

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        """q of each network. → [E, A, B]"""
        return self.architecture.q_values(self.weights, obs)


def _attribute(name: str) -> str:
    return name.replace(".", "__")  # a parameter's name must not contain dots
