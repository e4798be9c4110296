"""Many Q-networks of one shape, evaluated together.

A network is a set of named weights; N networks are the same names with a leading axis of N. Every hidden layer
of all of them is one batched product [N, batch, inputs] · [N, inputs, outputs]: rows are observations and weights
lie as they are multiplied, which is the order that BLAS needs no transposed copies for. A convolution is a
product over the patches of its input, which on boards of 10×10 beats a convolution kernel.
"""

from __future__ import annotations

import ctypes
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from gymnasium import spaces
from stable_baselines3.common.preprocessing import get_flattened_obs_dim, preprocess_obs
from torch import nn

from staq import kernels
from staq.actions import Factors

Weights = Mapping[str, torch.Tensor]
ConvArch = Sequence[tuple[int, int, int]]
"""One (filters, kernel size, stride) per convolution, without padding."""

Layer = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""Weights, biases, inputs → outputs, of N networks."""

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

    fixed: frozenset[str] = frozenset()
    """Weights that are not trained."""

    @abstractmethod
    def initial_trunk(self) -> dict[str, torch.Tensor]:
        """Freshly drawn weights of one network, without its output layer."""

    def kept(self, obs: torch.Tensor) -> torch.Tensor:
        """What a replay keeps of observations for the networks: whatever can be done once, in the type they have."""
        return obs

    @abstractmethod
    def prepared(self, kept: torch.Tensor) -> torch.Tensor:
        """What every network computes from B observations alike, and ``hidden`` starts from."""

    def prepared_for_many(self, kept: torch.Tensor) -> torch.Tensor | Distinct:
        """The same for hundreds of networks, which is worth more preparation."""
        return self.prepared(kept)

    @abstractmethod
    def hidden(self, weights: Weights, prepared: Any) -> torch.Tensor:
        """What the output layers of N networks see of B prepared observations. → [N, B, hidden_size]"""

    def hidden_of_many(self, weights: Weights, prepared: Any) -> torch.Tensor:
        """The same for networks that nobody differentiates, by whatever is fastest."""
        return self.hidden(weights, prepared)

    def initial_weights(self) -> dict[str, torch.Tensor]:
        """One network. Its output layer is zero, so that q = 0 and the first policy is uniform (Sec. 4.1)."""
        return self.initial_trunk() | {
            OUTPUT_WEIGHT: torch.zeros(self.n_actions, self.hidden_size),
            OUTPUT_BIAS: torch.zeros(self.n_actions),
        }

    def q_values(self, weights: Weights, obs: torch.Tensor) -> torch.Tensor:
        """q of N networks for B observations in their stored type. → [N, A, B]"""
        return self.q_of_kept(weights, self.kept(obs))

    def q_of_kept(self, weights: Weights, kept: torch.Tensor) -> torch.Tensor:
        """The same from what a replay keeps of the observations."""
        return output(weights[OUTPUT_WEIGHT], weights[OUTPUT_BIAS], self.hidden(weights, self.prepared(kept)))

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
        self._rectifies = type(self.activation) is nn.ReLU
        self._activated = torch.relu_ if self._rectifies else self.activation
        self.channels_last = channels_last
        features = get_flattened_obs_dim(observation_space)
        self.trunk_shapes: dict[str, tuple[int, int]] = {}  # (inputs, outputs)
        self.first_size: tuple[int, ...] = ()  # height and width of what comes out of the first convolution
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
                self.first_size = (height, width)
        return channels * height * width

    def initial_trunk(self) -> dict[str, torch.Tensor]:
        weights = {}
        for name, (inputs, outputs) in self.trunk_shapes.items():
            bound = 1.0 / math.sqrt(inputs)  # PyTorch's default for linear and convolution layers
            weights[f"{name}.weight"] = torch.empty(outputs, inputs).uniform_(-bound, bound).t().contiguous()
            weights[f"{name}.bias"] = torch.empty(outputs).uniform_(-bound, bound)
        return weights

    def kept(self, obs: torch.Tensor) -> torch.Tensor:
        """Of boards of bits the patches, which are few bytes and a gather of short runs to make: [B, H'·W'·inputs]."""
        if not self.conv_arch or obs.dtype != torch.bool:
            return obs
        return self._patches(obs.unsqueeze(0)).flatten(2)[0]

    def prepared(self, kept: torch.Tensor) -> torch.Tensor:
        """What the first layer of every network multiplies: [1, B, inputs], or patches [1, B, H', W', inputs]."""
        if self.conv_arch and kept.dim() == 2:  # patches already
            return kept.view(torch.uint8).float().view(1, len(kept), *self.first_size, -1)
        x = self.preprocessed(kept).unsqueeze(0)  # [1, B, ...]
        return self._patches(x) if self.conv_arch else x.flatten(2)

    def prepared_for_many(self, kept: torch.Tensor) -> torch.Tensor | Distinct:
        """Of the patches of boards, most of which are alike, each only once."""
        if not self.conv_arch or kept.dim() != 2:
            return self.prepared(kept)
        found = distinct_rows(kept.view(-1, self.trunk_shapes["conv.0"][0]))
        if found is None:
            return self.prepared(kept)
        rows, places = found
        return Distinct(rows.view(torch.uint8).float().unsqueeze(0), places, (len(kept), *self.first_size))

    def _patches(self, x: torch.Tensor) -> torch.Tensor:
        return patches(x if self.channels_last else x.permute(0, 1, 3, 4, 2), *self.conv_arch[0][1:])

    def hidden(self, weights: Weights, prepared: torch.Tensor | Distinct) -> torch.Tensor:
        return self._hidden(weights, prepared, lambda *layer: self._activated(affine(*layer)))

    def hidden_of_many(self, weights: Weights, prepared: torch.Tensor | Distinct) -> torch.Tensor:
        return self._hidden(weights, prepared, rectified) if self._rectifies else self.hidden(weights, prepared)

    def _hidden(self, weights: Weights, prepared: torch.Tensor | Distinct, layer: Layer) -> torch.Tensor:
        x = prepared.rows if isinstance(prepared, Distinct) else prepared
        for i in range(len(self.conv_arch)):
            if i > 0:
                x = patches(x, *self.conv_arch[i][1:])
            size: tuple[int, ...] = x.shape[1:-1]  # (B, H', W')
            x = layer(weights[f"conv.{i}.weight"], weights[f"conv.{i}.bias"], x.flatten(1, -2))
            if i == 0 and isinstance(prepared, Distinct):
                x, size = x.index_select(1, prepared.places), prepared.size
            x = x.unflatten(1, size)  # [N, B, H', W', filters]
        x = x.flatten(2)
        for i in range(len(self.net_arch)):
            x = layer(weights[f"mlp.{i}.weight"], weights[f"mlp.{i}.bias"], x)
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

    def prepared(self, kept: torch.Tensor) -> torch.Tensor:
        return self.preprocessed(kept)

    def hidden(self, weights: Weights, prepared: torch.Tensor) -> torch.Tensor:
        x = prepared
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


class Distinct(NamedTuple):
    """Patches of boards, each only once."""

    rows: torch.Tensor
    """[1, n, inputs]"""
    places: torch.Tensor
    """Where among them the patch of each board and position stands. [B·H'·W']"""
    size: tuple[int, ...]
    """(B, H', W')"""


def distinct_rows(bits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Rows of bits without repetition, and where among them each row stands; None where it would not pay.

    [n, inputs] → [distinct, inputs], [n]
    """
    # Up to 52 bits are exactly a number. Longer rows are several numbers in one, which might coincide: see below.
    inputs, length = bits.shape[1], 52
    powers = torch.zeros(inputs, -(-inputs // length), dtype=torch.float64, device=bits.device)
    each = torch.arange(inputs, device=bits.device)
    powers[each, each // length] = 2.0 ** (each % length).double()
    numbers = (bits.double() @ powers).long()
    key = numbers[:, 0]
    for other in numbers.t()[1:]:
        key = key * 0x9E3779B97F4A7C1 + other
    values, places = key.unique(return_inverse=True)
    if 2 * len(values) > len(bits):
        return None
    rows = bits[torch.empty_like(values).scatter_(0, places, torch.arange(len(bits), device=bits.device))]
    return (rows, places) if inputs <= length or torch.equal(rows[places], bits) else None


def activation_named(name: str) -> type[nn.Module]:
    """ "ReLU", "Tanh" …, as configurations and exports say it."""
    found = getattr(nn, name, None)
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        raise ValueError(f"activation_fn={name!r} is no layer of torch.nn, such as ReLU or Tanh.")
    return found


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


def affine(weight: torch.Tensor, bias: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """x W + b for N networks, whose input is their own or shared. [N, I, O], [N, O], [N or 1, B, I] → [N, B, O]"""
    return torch.baddbmm(bias.unsqueeze(1), x.expand(len(weight), -1, -1), weight)


def rectified(weight: torch.Tensor, bias: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """max(0, x W + b), by a kernel where there is one (``staq/kernels/dense.c``)."""
    n_networks, inputs, outputs = weight.shape
    fits = outputs % 32 == 0 and all(
        t.device.type == "cpu" and t.dtype == torch.float32 and t.is_contiguous() for t in (weight, bias, x)
    )
    kernel = kernels.load("dense") if fits else None
    if kernel is None:
        return affine(weight, bias, x).relu_()
    y = weight.new_empty(n_networks, x.shape[1], outputs)
    sizes = map(ctypes.c_long, (n_networks, x.shape[1], inputs, outputs))
    pointers = (ctypes.c_void_p(tensor.data_ptr()) for tensor in (weight, bias, y))
    kernel.rectified(ctypes.c_void_p(x.data_ptr()), len(x) == 1, *sizes, *pointers, torch.get_num_threads())
    return y


def output(weight: torch.Tensor, bias: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    """The output layers, one row per action: BLAS is slow at results with few columns, not at those with few rows.

    [N, A, H], [N, A], [N, B, H] → [N, A, B]
    """
    return torch.baddbmm(bias.unsqueeze(-1), weight, hidden.transpose(1, 2))


def patches(x: torch.Tensor, kernel: int, stride: int) -> torch.Tensor:
    """Every kernel × kernel patch, flattened as (row, column, channel). [N, B, H, W, C] → [N, B, H', W', k·k·C]"""
    runs = x.unfold(3, kernel, stride).transpose(-1, -2).flatten(-2)  # [N, B, H, W', k·C]
    last = x.shape[2] - kernel
    return torch.cat([runs[:, :, y : y + last + 1 : stride] for y in range(kernel)], dim=-1)


def _attribute(name: str) -> str:
    return name.replace(".", "__")  # a parameter's name must not contain dots
