"""Any PyTorch module as the trunk of many networks."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from gymnasium import spaces
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor, create_mlp
from torch import nn

from staq.actions import Factors
from staq.networks.architecture import OUTPUT_BIAS, OUTPUT_WEIGHT, Architecture, Weights
from staq.networks.layer_norm import Norm


class StackedModule(Architecture):
    """Any module from observations [B, ...] to features [B, hidden_size], stacked by ``torch.func``.

    Running statistics of a batch normalisation are weights that no gradient changes: those of the networks that learn
    follow their batches, and those of a frozen network are frozen with it.
    """

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
        self.statistics = frozenset(name for name, w in self.template.named_buffers() if w.is_floating_point())
        frozen = {name for name, w in self.template.named_parameters() if not w.requires_grad}
        self.fixed = self.statistics | frozen
        self.template.requires_grad_(False)
        self.template_device = torch.device("cpu")
        self.batch_norms = [m for m in self.template.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
        if any(module.momentum is None for module in self.batch_norms):
            raise ValueError(
                "A batch normalisation with momentum=None counts its batches, which stacked networks do not: give it a "
                "momentum, such as PyTorch's 0.1."
            )

    def initial_trunk(self) -> dict[str, torch.Tensor]:
        built = self.build()
        buffers = {name: w for name, w in built.named_buffers() if name in self.statistics}
        return {name: w.detach() for name, w in (*built.named_parameters(), *buffers.items())}

    def module_of(self, weights: Weights) -> nn.Module:
        """The first of N networks, below its output layer, as the module it is made of; it shares the weights."""
        module = copy.deepcopy(self.template)
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            if name in weights:
                tensor.data = weights[name].detach()[0]
        return module

    def inputs(self, obs: torch.Tensor) -> torch.Tensor | dict[str, torch.Tensor]:
        return self.preprocessed(obs) if self.parts is None else self.inputs_of_parts(self.parts.unpacked(obs))

    def inputs_of_parts(self, each: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return self.preprocessed_parts(each)

    def hidden_in_training(self, weights: Weights, inputs: Any) -> torch.Tensor:
        if not self.batch_norms:
            return self.hidden(weights, inputs)
        for module in self.batch_norms:
            module.train()
        try:
            # One by one: what happens to the statistics in place is to happen to each network's own.
            each = [{name: w[i : i + 1] for name, w in weights.items()} for i in range(len(weights[OUTPUT_BIAS]))]
            return torch.cat([self.hidden(network, inputs) for network in each])
        finally:
            for module in self.batch_norms:
                module.eval()

    def hidden(self, weights: Weights, inputs: Any) -> torch.Tensor:
        x, device = inputs, weights[OUTPUT_BIAS].device
        if device != self.template_device:  # only then: a module must not be moved while it is differentiated
            self.template.to(device)
            self.template_device = device
        trunk = {name: w for name, w in weights.items() if name not in (OUTPUT_WEIGHT, OUTPUT_BIAS)}

        def one_network(network: dict[str, torch.Tensor]) -> torch.Tensor:
            features: torch.Tensor = torch.func.functional_call(self.template, network, (x,))
            return features  # [B, hidden_size]

        if not trunk:  # all networks see the same features
            return one_network({}).expand(len(weights[OUTPUT_BIAS]), -1, -1)
        if len(weights[OUTPUT_BIAS]) == 1:
            return one_network({name: w[0] for name, w in trunk.items()}).unsqueeze(0)
        return torch.vmap(one_network)(trunk)


def over_extractor(
    observation_space: spaces.Space,
    n_actions: Factors,
    extractor_class: type[BaseFeaturesExtractor],
    extractor_kwargs: dict[str, Any],
    net_arch: list[int],
    activation_fn: type[nn.Module],
    normalize_images: bool,
    norm: Norm = None,
) -> StackedModule:
    """Fully connected layers over a features extractor of SB3's kind."""

    def build() -> nn.Module:
        extractor = extractor_class(observation_space, **extractor_kwargs)
        normalised: list[type[nn.Module]] = [nn.LayerNorm] if norm else []
        layers = create_mlp(extractor.features_dim, -1, net_arch, activation_fn, post_linear_modules=normalised)
        return nn.Sequential(extractor, *layers)

    features_dim = extractor_class(observation_space, **extractor_kwargs).features_dim
    hidden_size = net_arch[-1] if net_arch else features_dim
    return StackedModule(observation_space, n_actions, build, hidden_size, normalize_images)
