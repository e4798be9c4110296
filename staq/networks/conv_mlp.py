"""Convolutions and fully connected layers of many networks at once.

A convolution is a product over the patches of its input, which on boards of 10×10 beats a convolution kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from gymnasium import spaces
from stable_baselines3.common.preprocessing import get_flattened_obs_dim
from torch import nn

from staq.actions import Factors
from staq.networks import boards, kernels
from staq.networks.architecture import OUTPUT_BIAS, Architecture, Weights
from staq.networks.boards import DistinctPatches
from staq.networks.layer_norm import Norm, layer_norm, rectified_norm_

ConvArch = Sequence[tuple[int, int, int]]
"""One (filters, kernel size, stride) per convolution, without padding."""

Layer = Callable[[Weights, str, torch.Tensor], torch.Tensor]
"""Weights, a layer's name, its inputs → its activations, of N networks."""


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
        norm: Norm = None,
    ) -> None:
        """:param norm: "layer" for layer normalisation before every activation, of a convolution over its filters"""
        self.norm = norm
        self.conv_arch = [(int(f), int(k), int(s)) for f, k, s in conv_arch]
        self.net_arch = [int(width) for width in net_arch]
        self.activation = activation_fn()
        # In place: nobody needs what a layer had before it was rectified.
        self._rectifies = type(self.activation) is nn.ReLU
        self._activated = torch.relu_ if self._rectifies else self.activation
        self.channels_last = channels_last
        n_inputs = get_flattened_obs_dim(observation_space)
        self.trunk_shapes: dict[str, tuple[int, int]] = {}  # (inputs, outputs)
        self.first_size: tuple[int, ...] = ()  # height and width of what comes out of the first convolution
        if self.conv_arch:
            n_inputs = self._convolution_shapes(observation_space)
        for i, width in enumerate(self.net_arch):
            self.trunk_shapes[f"mlp.{i}"] = (n_inputs, width)
            n_inputs = width
        super().__init__(observation_space, n_actions, n_inputs, normalize_images)

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
                self.first_size = (height, width)
        return channels * height * width

    def initial_trunk(self) -> dict[str, torch.Tensor]:
        weights = {}
        for name, (inputs, outputs) in self.trunk_shapes.items():
            bound = 1.0 / math.sqrt(inputs)  # PyTorch's default for linear and convolution layers
            weights[f"{name}.weight"] = torch.empty(outputs, inputs).uniform_(-bound, bound).t().contiguous()
            weights[f"{name}.bias"] = torch.empty(outputs).uniform_(-bound, bound)
            if self.norm:
                weights[f"{name}.norm.weight"] = torch.ones(outputs)
                weights[f"{name}.norm.bias"] = torch.zeros(outputs)
        return weights

    def inputs(self, obs: torch.Tensor) -> torch.Tensor:
        """What the first layer of every network multiplies: [1, B, inputs], or patches [1, B, H', W', inputs]."""
        if self.parts is not None:
            return self.inputs_of_parts(self.parts.unpacked(obs))
        x = self.preprocessed(obs).unsqueeze(0)  # [1, B, ...]
        return patches(self.with_channels_last(x), *self.conv_arch[0][1:]) if self.conv_arch else x.flatten(2)

    def inputs_of_parts(self, each: Mapping[str, torch.Tensor]) -> torch.Tensor:
        flat = [values.flatten(1) for values in self.preprocessed_parts(each).values()]
        return torch.cat(flat, dim=1).unsqueeze(0)

    def inputs_of_many(self, obs: torch.Tensor) -> torch.Tensor | DistinctPatches:
        """The patches of boards of bits, where there is a kernel that takes them."""
        if not self.takes_bits(obs):
            return self.inputs(obs)
        patches = DistinctPatches(self.with_channels_last(obs).contiguous(), self.conv_arch[0][1])
        patches.find()
        return patches

    def takes_bits(self, obs: torch.Tensor) -> bool:
        """Whether a kernel computes the only convolution and the layer above it from the bits of boards."""
        if not (self._rectifies and len(self.conv_arch) == 1 and self.net_arch and obs.dtype == torch.bool):
            return False
        shape = tuple(self.with_channels_last(obs).shape[1:])
        return boards.suits(shape, self.conv_arch[0], self.net_arch[0], obs.device)

    def with_channels_last(self, images: torch.Tensor) -> torch.Tensor:
        """[..., C, H, W] → [..., H, W, C], unless they are so already."""
        return images if self.channels_last else images.movedim(-3, -1)

    def hidden(self, weights: Weights, inputs: torch.Tensor) -> torch.Tensor:
        return self._hidden(weights, inputs, self._layer)

    def hidden_of_many(self, weights: Weights, inputs: torch.Tensor | DistinctPatches) -> torch.Tensor:
        if isinstance(inputs, DistinctPatches):
            return self._fully_connected(weights, self._above_boards(weights, inputs), self._layer_of_many, first=1)
        return self._hidden(weights, inputs, self._layer_of_many if self._rectifies else self._layer)

    def _layer(self, weights: Weights, name: str, x: torch.Tensor) -> torch.Tensor:
        sums = affine(weights[f"{name}.weight"], weights[f"{name}.bias"], x)
        if self.norm:
            sums = layer_norm(sums, weights[f"{name}.norm.weight"], weights[f"{name}.norm.bias"])
        return self._activated(sums)

    def _layer_of_many(self, weights: Weights, name: str, x: torch.Tensor) -> torch.Tensor:
        y = dense(weights[f"{name}.weight"], weights[f"{name}.bias"], x, rectify=not self.norm)
        return self._rectified_(weights, name, y) if self.norm else y

    def _above_boards(self, weights: Weights, patches: DistinctPatches) -> torch.Tensor:
        """Activations of the layer above the convolution, not to be differentiated. → [N, B, outputs]"""
        pair = partial(_pair, weights)
        layer = pair("mlp.0")
        y = layer[0].new_empty(len(layer[0]), patches.n_boards, layer[0].shape[-1])
        boards.sums_above(patches, pair("conv.0"), pair("conv.0.norm") if self.norm else None, layer, y)()
        return self._rectified_(weights, "mlp.0", y)

    def _rectified_(self, weights: Weights, name: str, sums: torch.Tensor) -> torch.Tensor:
        """A layer's activations from its sums, in place, not to be differentiated."""
        if self.norm:
            return rectified_norm_(sums, weights[f"{name}.norm.weight"], weights[f"{name}.norm.bias"])
        return sums.relu_()

    def _hidden(self, weights: Weights, inputs: torch.Tensor, layer: Layer) -> torch.Tensor:
        x = inputs
        for i in range(len(self.conv_arch)):
            x = patches(x, *self.conv_arch[i][1:]) if i > 0 else x
            size = x.shape[1:-1]  # (B, H', W')
            x = layer(weights, f"conv.{i}", x.flatten(1, -2))
            x = x.unflatten(1, size)  # [N, B, H', W', filters]
        return self._fully_connected(weights, x.flatten(2), layer)

    def _fully_connected(self, weights: Weights, x: torch.Tensor, layer: Layer, first: int = 0) -> torch.Tensor:
        for i in range(first, len(self.net_arch)):
            x = layer(weights, f"mlp.{i}", x)
        # Without a hidden layer all N networks see the input itself.
        return x.expand(len(weights[OUTPUT_BIAS]), -1, -1)


def _pair(weights: Weights, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    return weights[f"{name}.weight"], weights[f"{name}.bias"]


def affine(weight: torch.Tensor, bias: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """x W + b for N networks, whose input is their own or shared. [N, I, O], [N, O], [N or 1, B, I] → [N, B, O]"""
    return torch.baddbmm(bias.unsqueeze(1), x.expand(len(weight), -1, -1), weight)


def dense(weight: torch.Tensor, bias: torch.Tensor, x: torch.Tensor, rectify: bool) -> torch.Tensor:
    """x W + b, or max(0, x W + b), by a kernel where there is one (``kernels/dense.c``)."""
    n_networks, inputs, outputs = weight.shape
    fits = outputs % 32 == 0 and all(
        t.device.type == "cpu" and t.dtype == torch.float32 and t.is_contiguous() for t in (weight, bias, x)
    )
    kernel = kernels.load("dense") if fits else None
    if kernel is None:
        y = affine(weight, bias, x)
        return y.relu_() if rectify else y
    y = weight.new_empty(n_networks, x.shape[1], outputs)
    sizes = n_networks, x.shape[1], inputs, outputs
    kernels.bound(kernel.dense, x, len(x) == 1, *sizes, weight, bias, y, rectify, torch.get_num_threads())()
    return y


def patches(x: torch.Tensor, kernel: int, stride: int) -> torch.Tensor:
    """Every kernel × kernel patch, flattened as (row, column, channel). [N, B, H, W, C] → [N, B, H', W', k·k·C]"""
    runs = x.unfold(3, kernel, stride).transpose(-1, -2).flatten(-2)  # [N, B, H, W', k·C]
    last = x.shape[2] - kernel
    return torch.cat([runs[:, :, y : y + last + 1 : stride] for y in range(kernel)], dim=-1)


def activation_named(name: str) -> type[nn.Module]:
    """ "ReLU", "Tanh" …, as configurations and exports say it."""
    found = getattr(nn, name, None)
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        raise ValueError(f"activation_fn={name!r} is no layer of torch.nn, such as ReLU or Tanh.")
    return found
