"""Many Q-networks of one shape, evaluated together.

A network is a set of named weights; N networks are the same names with a leading axis of N. Activations are
feature-major, [N, features, batch]: then the first layer of all N networks is one matrix product (they see
the same input), every later layer is one batched product, and nothing is ever transposed in between. A
convolution is a product over the patches of its input, which on boards of 10×10 beats a convolution kernel.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

import torch
from gymnasium import spaces
from stable_baselines3.common.preprocessing import get_flattened_obs_dim, preprocess_obs
from torch import nn

Weights = Mapping[str, torch.Tensor]
ConvArch = Sequence[tuple[int, int, int]]
"""One (filters, kernel size, stride) per convolution, without padding."""

OUTPUT_WEIGHT, OUTPUT_BIAS = "output.weight", "output.bias"


class Architecture(ABC):
    """The shape of one Q-network: everything up to its linear output layer is left to the subclass."""

    def __init__(self, observation_space: spaces.Space, n_actions: int, hidden_size: int, normalize_images: bool):
        self.observation_space = observation_space
        self.normalize_images = normalize_images
        self.n_actions = n_actions
        self.hidden_size = hidden_size

    @abstractmethod
    def initial_trunk(self) -> dict[str, torch.Tensor]:
        """Freshly drawn weights of one network, without its output layer."""

    @abstractmethod
    def hidden(self, weights: Weights, obs: torch.Tensor) -> torch.Tensor:
        """What the output layers of N networks see of B observations. → [N, hidden_size, B]"""

    def initial_weights(self) -> dict[str, torch.Tensor]:
        """One network. Its output layer is zero, so that q = 0 and the first policy is uniform (Sec. 4.1)."""
        return self.initial_trunk() | {
            OUTPUT_WEIGHT: torch.zeros(self.n_actions, self.hidden_size),
            OUTPUT_BIAS: torch.zeros(self.n_actions),
        }

    def q_values(self, weights: Weights, obs: torch.Tensor) -> torch.Tensor:
        """q of N networks for B observations in their stored type. → [N, A, B]"""
        return affine(weights[OUTPUT_WEIGHT], weights[OUTPUT_BIAS], self.hidden(weights, obs))

    def preprocessed(self, obs: torch.Tensor) -> torch.Tensor:
        """SB3's preparation: floats, images scaled to [0, 1], one-hot for discrete observations."""
        if isinstance(self.observation_space, spaces.Discrete):
            obs = obs.reshape(-1) - int(self.observation_space.start)
        prepared = preprocess_obs(obs, self.observation_space, self.normalize_images)
        assert isinstance(prepared, torch.Tensor)
        return prepared


class ConvMlp(Architecture):
    """Convolutions (maybe none), then fully connected layers (maybe none)."""

    def __init__(
        self,
        observation_space: spaces.Space,
        n_actions: int,
        net_arch: Sequence[int],
        activation_fn: type[nn.Module] = nn.ReLU,
        conv_arch: ConvArch = (),
        channels_last: bool = True,
        normalize_images: bool = True,
    ) -> None:
        self.conv_arch = [(int(f), int(k), int(s)) for f, k, s in conv_arch]
        self.net_arch = [int(width) for width in net_arch]
        self.activation = activation_fn()
        self.channels_last = channels_last
        features = get_flattened_obs_dim(observation_space)
        self.trunk_shapes: dict[str, tuple[int, int]] = {}
        if self.conv_arch:
            features = self._convolution_shapes(observation_space)
        for i, width in enumerate(self.net_arch):
            self.trunk_shapes[f"mlp.{i}"] = (width, features)
            features = width
        super().__init__(observation_space, n_actions, features, normalize_images)

    def _convolution_shapes(self, space: spaces.Space) -> int:
        if space.shape is None or len(space.shape) != 3:
            raise ValueError(
                f"CnnPolicy needs observations with three axes (height, width, channel), not {space}: "
                "use MlpPolicy for vectors."
            )
        height, width, channels = space.shape if self.channels_last else (*space.shape[1:], space.shape[0])
        for i, (filters, kernel, stride) in enumerate(self.conv_arch):
            if min(height, width) < kernel:
                raise ValueError(
                    f"conv_arch={self.conv_arch}: layer {i} has kernel size {kernel} but its input is "
                    f"{height}×{width}. Use smaller kernels or fewer layers, or set channels_last="
                    f"{not self.channels_last} in policy_kwargs if the axes of {space.shape} were mistaken."
                )
            self.trunk_shapes[f"conv.{i}"] = (filters, channels * kernel * kernel)
            height, width = (height - kernel) // stride + 1, (width - kernel) // stride + 1
            channels, self.n_positions = filters, height * width  # of the last convolution's output
        return channels * height * width

    def initial_trunk(self) -> dict[str, torch.Tensor]:
        weights = {}
        for name, (out_features, in_features) in self.trunk_shapes.items():
            bound = 1.0 / math.sqrt(in_features)  # PyTorch's default for linear and convolution layers
            weights[f"{name}.weight"] = torch.empty(out_features, in_features).uniform_(-bound, bound)
            weights[f"{name}.bias"] = torch.empty(out_features).uniform_(-bound, bound)
        return weights

    def first_input(self, obs: torch.Tensor) -> tuple[torch.Tensor, tuple[int, ...]]:
        """What the first layer of every network multiplies, [1, inputs, columns], and the size of a column's axes.

        A column is an observation, or for a convolution a patch of one: then the size is (H', W', B).
        """
        x = self.preprocessed(obs)  # [B, ...]
        if not self.conv_arch:
            return x.flatten(1).t().unsqueeze(0), (len(obs),)
        x = x.permute(3, 1, 2, 0) if self.channels_last else x.permute(1, 2, 3, 0)  # [C, H, W, B]
        return unfolded(x.unsqueeze(0), *self.conv_arch[0][1:])

    def hidden(self, weights: Weights, obs: torch.Tensor) -> torch.Tensor:
        x, size = self.first_input(obs)
        for i in range(len(self.conv_arch)):
            if i > 0:
                x, size = unfolded(x, *self.conv_arch[i][1:])  # [N, C·k·k, H'·W'·B]
            x = self.activation(affine(weights[f"conv.{i}.weight"], weights[f"conv.{i}.bias"], x))
            x = x.unflatten(-1, size)  # [N, C', H', W', B]
        x = x.flatten(1, -2)  # [N, features, B]
        for i in range(len(self.net_arch)):
            x = self.activation(affine(weights[f"mlp.{i}.weight"], weights[f"mlp.{i}.bias"], x))
        # Without a hidden layer all N networks see the input itself.
        return x.expand(len(weights[OUTPUT_BIAS]), -1, -1)


class StackedModule(Architecture):
    """Any module from observations [B, ...] to features [B, hidden_size], stacked by ``torch.func``."""

    def __init__(
        self,
        observation_space: spaces.Space,
        n_actions: int,
        build: Callable[[], nn.Module],
        hidden_size: int,
        normalize_images: bool = True,
    ) -> None:
        super().__init__(observation_space, n_actions, hidden_size, normalize_images)
        self.build = build
        self.template = build().eval().requires_grad_(False)
        for module in self.template.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                raise ValueError(
                    f"{type(module).__name__} in a features extractor has running statistics, which a frozen "
                    "network cannot keep: use nn.LayerNorm or nn.GroupNorm."
                )

    def initial_trunk(self) -> dict[str, torch.Tensor]:
        return {name: weight.detach() for name, weight in self.build().named_parameters()}

    def hidden(self, weights: Weights, obs: torch.Tensor) -> torch.Tensor:
        x = self.preprocessed(obs)
        self.template.to(x.device)
        trunk = {name: w for name, w in weights.items() if name not in (OUTPUT_WEIGHT, OUTPUT_BIAS)}

        def one_network(network: dict[str, torch.Tensor]) -> torch.Tensor:
            features: torch.Tensor = torch.func.functional_call(self.template, network, (x,))
            return features  # [B, hidden_size]

        return torch.vmap(one_network)(trunk).transpose(1, 2)


class QEnsemble(nn.Module):
    """E networks with their own weights, as trainable parameters [E, ...]."""

    def __init__(self, architecture: Architecture, n_networks: int) -> None:
        super().__init__()
        self.architecture = architecture
        networks = [architecture.initial_weights() for _ in range(n_networks)]
        self.names = list(networks[0])
        for name in self.names:
            stacked = torch.stack([network[name] for network in networks])
            self.register_parameter(_attribute(name), nn.Parameter(stacked))

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        return {name: getattr(self, _attribute(name)) for name in self.names}

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        """q of each network. → [E, A, B]"""
        return self.architecture.q_values(self.weights, obs)


def affine(weight: torch.Tensor, bias: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """W x + b for N networks, whose input is their own or shared. [N, O, I], [N, O], [N or 1, I, B] → [N, O, B]"""
    if x.shape[0] == 1:
        n_networks, out_features, in_features = weight.shape
        product = torch.addmm(bias.reshape(-1, 1), weight.reshape(-1, in_features), x[0])
        return product.view(n_networks, out_features, -1)
    return torch.baddbmm(bias.unsqueeze(-1), weight, x)


def unfolded(x: torch.Tensor, kernel: int, stride: int) -> tuple[torch.Tensor, tuple[int, int, int]]:
    """Patches of [N, C, H, W, B] as columns [N, C·k·k, H'·W'·B], and the size (H', W', B)."""
    windows = x.unfold(2, kernel, stride).unfold(3, kernel, stride)  # [N, C, H', W', B, k, k]
    n, channels, height, width, batch = windows.shape[:5]
    columns = windows.permute(0, 1, 5, 6, 2, 3, 4)
    return columns.reshape(n, channels * kernel * kernel, -1), (height, width, batch)


def _attribute(name: str) -> str:
    return name.replace(".", "__")  # a parameter's name must not contain dots
