"""Any PyTorch module as the trunk of many networks."""

from __future__ import annotations

from collections.abc import Callable

import torch
from gymnasium import spaces
from torch import nn

from staq.actions import Factors
from staq.networks.architecture import OUTPUT_BIAS, OUTPUT_WEIGHT, Architecture, Weights


class StackedModule(Architecture):
    """Any module from observations [B, ...] to features [B, hidden_size], stacked by ``torch.func``."""

    def __init__(
        self,
        observation_space: spaces.Space,
        n_actions: int | Factors,
        build: Callable[[], nn.Module],
        hidden_size: int,
        normalize_images: bool = True,
    ) -> None:
        super().__init__(observation_space, n_actions, hidden_size, normalize_images)
        self.build = build
        self.template = build().eval()
        self.fixed = frozenset(name for name, w in self.template.named_parameters() if not w.requires_grad)
        self.template.requires_grad_(False)
        self.template_device = torch.device("cpu")
        for module in self.template.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                raise ValueError(
                    f"{type(module).__name__} in a features extractor has running statistics, which a frozen "
                    "network cannot keep: use nn.LayerNorm or nn.GroupNorm."
                )

    def initial_trunk(self) -> dict[str, torch.Tensor]:
        return {name: weight.detach() for name, weight in self.build().named_parameters()}

    def inputs(self, obs: torch.Tensor) -> torch.Tensor:
        return self.preprocessed(obs)

    def hidden(self, weights: Weights, inputs: torch.Tensor) -> torch.Tensor:
        x = inputs
        if x.device != self.template_device:  # only then: a module must not be moved while it is differentiated
            self.template.to(x.device)
            self.template_device = x.device
        trunk = {name: w for name, w in weights.items() if name not in (OUTPUT_WEIGHT, OUTPUT_BIAS)}

        def one_network(network: dict[str, torch.Tensor]) -> torch.Tensor:
            features: torch.Tensor = torch.func.functional_call(self.template, network, (x,))
            return features  # [B, hidden_size]

        if not trunk:  # all networks see the same features
            return one_network({}).expand(len(weights[OUTPUT_BIAS]), -1, -1)
        return torch.vmap(one_network)(trunk)
