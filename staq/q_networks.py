"""Many Q-networks of one shape, evaluated together.

A network is a set of named weights; N networks are the same names with a leading axis of N. Every hidden layer
of all of them is one batched product [N, batch, inputs] · [N, inputs, outputs]: rows are observations and weights
lie as they are multiplied, which is the order that BLAS needs no transposed copies for. A convolution is a
product over the patches of its input, which on boards of 10×10 beats a convolution kernel.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

import torch
from gymnasium import spaces
from stable_baselines3.common.preprocessing import get_flattened_obs_dim, preprocess_obs
from torch import nn

from staq.actions import Factors

Weights = Mapping[str, torch.Tensor]
ConvArch = Sequence[tuple[int, int, int]]
"""One (filters, kernel size, stride) per convolution, without padding."""

OUTPUT_WEIGHT, OUTPUT_BIAS = "output.weight", "output.bias"


class Architecture(ABC):
    """The shape of one Q-network: everything up to its linear output layer is left to the subclass."""

    def __init__(
        self,
        observation_space: spaces.Space,
        n_actions: int | Factors,
        hidden_size: int,
        normalize_images: bool,
    ) -> None:
        self.observation_space = observation_space
        self.normalize_images = normalize_images
        self.factors = n_actions if isinstance(n_actions, Factors) else Factors([n_actions])
        self.n_actions = self.factors.n_outputs
        self.hidden_size = hidden_size

    @abstractmethod
    def initial_trunk(self) -> dict[str, torch.Tensor]:
        """Freshly drawn weights of one network, without its output layer."""

    @abstractmethod
    def prepared(self, obs: torch.Tensor) -> torch.Tensor:
        """What every network computes from B observations alike, and ``hidden`` starts from."""

    @abstractmethod
    def hidden(self, weights: Weights, prepared: torch.Tensor) -> torch.Tensor:
        """What the output layers of N networks see of B prepared observations. → [N, B, hidden_size]"""

    def initial_weights(self) -> dict[str, torch.Tensor]:
        """One network. Its output layer is zero, so that q = 0 and the first policy is uniform (Sec. 4.1)."""
        return self.initial_trunk() | {
            OUTPUT_WEIGHT: torch.zeros(self.n_actions, self.hidden_size),
            OUTPUT_BIAS: torch.zeros(self.n_actions),
        }

    def q_values(self, weights: Weights, obs: torch.Tensor) -> torch.Tensor:
        """q of N networks for B observations in their stored type. → [N, A, B]"""
        return output(weights[OUTPUT_WEIGHT], weights[OUTPUT_BIAS], self.hidden(weights, self.prepared(obs)))

    def preprocessed(self, obs: torch.Tensor) -> torch.Tensor:
        """SB3's preparation: floats, images scaled to [0, 1], one-hot for discrete observations."""
        if isinstance(self.observation_space, spaces.Discrete):
            obs = obs.reshape(-1) - int(self.observation_space.start)
        if obs.dtype == torch.bool:
            obs = obs.view(torch.uint8)  # the same bytes, which become floats ten times as fast
        prepared = preprocess_obs(obs, self.observation_space, self.normalize_images)
        assert isinstance(prepared, torch.Tensor)
        return prepared


class ConvMlp(Architecture):
    """Convolutions (maybe none), then fully connected layers (maybe none)."""

    def __init__(
        self,
        observation_space: spaces.Space,
        n_actions: int | Factors,
        net_arch: Sequence[int],
        activation_fn: type[nn.Module] = nn.ReLU,
        conv_arch: ConvArch = (),
        channels_last: bool = True,
        normalize_images: bool = True,
    ) -> None:
        self.conv_arch = [(int(f), int(k), int(s)) for f, k, s in conv_arch]
        self.net_arch = [int(width) for width in net_arch]
        self.activation = activation_fn()
        # In place: nobody needs what a layer had before it was rectified.
        self._activated = torch.relu_ if type(self.activation) is nn.ReLU else self.activation
        self.channels_last = channels_last
        features = get_flattened_obs_dim(observation_space)
        self.trunk_shapes: dict[str, tuple[int, int]] = {}  # (inputs, outputs)
        self.n_positions = 1  # rows per observation that the first layer multiplies
        if self.conv_arch:
            features = self._convolution_shapes(observation_space)
        for i, width in enumerate(self.net_arch):
            self.trunk_shapes[f"mlp.{i}"] = (features, width)
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
            self.trunk_shapes[f"conv.{i}"] = (kernel * kernel * channels, filters)
            height, width = (height - kernel) // stride + 1, (width - kernel) // stride + 1
            channels = filters
            if i == 0:
                self.n_positions = height * width
        return channels * height * width

    def initial_trunk(self) -> dict[str, torch.Tensor]:
        weights = {}
        for name, (inputs, outputs) in self.trunk_shapes.items():
            bound = 1.0 / math.sqrt(inputs)  # PyTorch's default for linear and convolution layers
            weights[f"{name}.weight"] = torch.empty(outputs, inputs).uniform_(-bound, bound).t().contiguous()
            weights[f"{name}.bias"] = torch.empty(outputs).uniform_(-bound, bound)
        return weights

    def prepared(self, obs: torch.Tensor) -> torch.Tensor:
        """What the first layer of every network multiplies: [1, B, inputs], or patches [1, B, H', W', inputs]."""
        x = self.preprocessed(obs).unsqueeze(0)  # [1, B, ...]
        if not self.conv_arch:
            return x.flatten(2)
        return patches(x if self.channels_last else x.permute(0, 1, 3, 4, 2), *self.conv_arch[0][1:])

    def hidden(self, weights: Weights, prepared: torch.Tensor) -> torch.Tensor:
        x = prepared
        for i in range(len(self.conv_arch)):
            if i > 0:
                x = patches(x, *self.conv_arch[i][1:])
            size = x.shape[1:-1]  # (B, H', W')
            x = self._activated(affine(weights[f"conv.{i}.weight"], weights[f"conv.{i}.bias"], x.flatten(1, -2)))
            x = x.unflatten(1, size)  # [N, B, H', W', filters]
        x = x.flatten(2)
        for i in range(len(self.net_arch)):
            x = self._activated(affine(weights[f"mlp.{i}.weight"], weights[f"mlp.{i}.bias"], x))
        # Without a hidden layer all N networks see the input itself.
        return x.expand(len(weights[OUTPUT_BIAS]), -1, -1)


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
        self.template = build().eval().requires_grad_(False)
        for module in self.template.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                raise ValueError(
                    f"{type(module).__name__} in a features extractor has running statistics, which a frozen "
                    "network cannot keep: use nn.LayerNorm or nn.GroupNorm."
                )

    def initial_trunk(self) -> dict[str, torch.Tensor]:
        return {name: weight.detach() for name, weight in self.build().named_parameters()}

    def prepared(self, obs: torch.Tensor) -> torch.Tensor:
        return self.preprocessed(obs)

    def hidden(self, weights: Weights, prepared: torch.Tensor) -> torch.Tensor:
        x = prepared
        self.template.to(x.device)
        trunk = {name: w for name, w in weights.items() if name not in (OUTPUT_WEIGHT, OUTPUT_BIAS)}

        def one_network(network: dict[str, torch.Tensor]) -> torch.Tensor:
            features: torch.Tensor = torch.func.functional_call(self.template, network, (x,))
            return features  # [B, hidden_size]

        return torch.vmap(one_network)(trunk)


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
    def device(self) -> torch.device:
        return self.weights[OUTPUT_BIAS].device

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        return {name: getattr(self, _attribute(name)) for name in self.names}

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        """q of each network. → [E, A, B]"""
        return self.architecture.q_values(self.weights, obs)


class FirstInput:
    """What ``ConvMlp.prepared`` gives for batches of one size, in memory and views that are made once."""

    def __init__(self, architecture: ConvMlp, batch_size: int, device: torch.device) -> None:
        self.architecture = architecture
        shape = architecture.observation_space.shape
        sizes = (batch_size, *shape) if architecture.conv_arch and shape is not None else None
        if sizes is None:
            inputs = next(iter(architecture.trunk_shapes.values()))[0] if architecture.trunk_shapes else None
            self.rows = torch.empty(1, batch_size, inputs or architecture.hidden_size, device=device)
            return
        self.pixels = torch.empty(sizes, device=device)
        image = self.pixels if architecture.channels_last else self.pixels.permute(0, 2, 3, 1)
        self.runs = rows_of_patches(image.unsqueeze(0), *architecture.conv_arch[0][1:])
        self.rows = torch.cat(self.runs, dim=-1)  # [1, B, H', W', k·k·C]

    def fill(self, obs: torch.Tensor) -> None:
        if not self.architecture.conv_arch:
            self.rows.copy_(self.architecture.preprocessed(obs).flatten(1))
            return
        if obs.dtype == torch.bool:
            self.pixels.copy_(obs.view(torch.uint8))
        else:
            self.pixels.copy_(self.architecture.preprocessed(obs))
        torch.cat(self.runs, dim=-1, out=self.rows)


def affine(weight: torch.Tensor, bias: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """x W + b for N networks, whose input is their own or shared. [N, I, O], [N, O], [N or 1, B, I] → [N, B, O]"""
    return torch.baddbmm(bias.unsqueeze(1), x.expand(len(weight), -1, -1), weight)


def output(weight: torch.Tensor, bias: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    """The output layers, one row per action: BLAS is slow at results with few columns, not at those with few rows.

    [N, A, H], [N, A], [N, B, H] → [N, A, B]
    """
    return torch.baddbmm(bias.unsqueeze(-1), weight, hidden.transpose(1, 2))


def patches(x: torch.Tensor, kernel: int, stride: int) -> torch.Tensor:
    """Every kernel × kernel patch, flattened as (row, column, channel). [N, B, H, W, C] → [N, B, H', W', k·k·C]"""
    return torch.cat(rows_of_patches(x, kernel, stride), dim=-1)


def rows_of_patches(x: torch.Tensor, kernel: int, stride: int) -> list[torch.Tensor]:
    """The same row by row of the kernel, as views: each [N, B, H', W', k·C], with runs of k·C in memory."""
    runs = x.unfold(3, kernel, stride).transpose(-1, -2).flatten(-2)  # [N, B, H, W', k·C]
    last = x.shape[2] - kernel
    return [runs[:, :, y : y + last + 1 : stride] for y in range(kernel)]


def _attribute(name: str) -> str:
    return name.replace(".", "__")  # a parameter's name must not contain dots
