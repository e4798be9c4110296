"""Gradients of an ensemble's weights from the error at its outputs: by autograd, or written out where faster."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Protocol

import torch
from torch import nn

from staq.networks import boards
from staq.networks.boards import DistinctPatches
from staq.networks.conv_mlp import ConvMlp
from staq.networks.ensemble import QEnsemble
from staq.networks.layer_norm import RectifiedNorm


class Backpropagation(Protocol):
    """Two halves of a gradient step; what lies between them, the loss, is up to the caller."""

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        """Outputs of each network, without a graph; valid until the next call. [B, ...] → [E, A, B]"""

    def backward(self, error: torch.Tensor) -> None:
        """Fills every ``.grad`` from the loss's derivative by those outputs. [E, A, B]"""


def backpropagation(ensemble: QEnsemble, batch_size: int) -> Backpropagation:
    """The fastest exact one that there is for an ensemble."""
    architecture = ensemble.architecture
    # A second convolution would need its patches folded back: left to autograd.
    if (
        isinstance(architecture, ConvMlp)
        and type(architecture.activation) is nn.ReLU
        and len(architecture.conv_arch) <= 1
    ):
        return ClosedForm(ensemble, batch_size)
    return Autograd(ensemble)


def differentiate(
    loss: Callable[..., torch.Tensor], outputs: torch.Tensor, *arguments: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """A loss of networks' outputs, and its derivative by them for ``Backpropagation.backward``.

    By autograd, which for so few numbers costs a twentieth of a gradient step: the loss that is written is the loss
    that trains.
    """
    leaf = outputs.detach().requires_grad_()
    with torch.enable_grad():
        value = loss(leaf, *arguments)
    (error,) = torch.autograd.grad(value, leaf)
    return value.detach(), error


class Autograd:
    """What every other has to equal."""

    def __init__(self, ensemble: QEnsemble) -> None:
        self.ensemble = ensemble
        self.learning = any(weight.requires_grad for weight in ensemble.parameters())

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            self.outputs = self.ensemble.architecture.q_values(self.ensemble.weights, obs, self.learning)
        return self.outputs.detach()

    def backward(self, error: torch.Tensor) -> None:
        self.ensemble.zero_grad()
        self.outputs.backward(error)


class ClosedForm:
    """Back-propagation through ReLU layers, written out, on buffers and views of them that are made once.

    Between two large products everything small is slow, since nothing of it is left in a CPU's cache: what counts is
    how few calls there are. And what one core has written is slow to reach another: see ``HiddenLayer.forward``.
    """

    def __init__(self, ensemble: QEnsemble, batch_size: int, shared: bool = True) -> None:
        """:param shared: whether all networks see the same batch, or each one of its own"""
        assert isinstance(ensemble.architecture, ConvMlp)
        self.architecture = ensemble.architecture
        positions = self.architecture.first_size
        self.n_chunks = math.prod(positions)
        inputs = next((size[0] for size in self.architecture.trunk_shapes.values()), self.architecture.hidden_size)
        n_batches = 1 if shared else len(ensemble.weights["output.bias"])
        self.rows = torch.empty(n_batches, batch_size, *positions, inputs, device=ensemble.device)
        layers: list[HiddenLayer] = []
        seen = self.rows
        for name in ensemble.architecture.trunk_shapes:
            layers.append(_layer(ensemble, name, seen, self.n_chunks, layers[-1] if layers else None))
            seen = layers[-1].activation
        self.layers, self.first = layers, layers[0] if layers else None
        self.weight, bias, self.weight_grad, self.bias_grad = _with_gradient(ensemble, "output")
        self.bias_column = bias.unsqueeze(-1)
        self.hidden = seen.reshape(len(seen), batch_size, -1).expand(len(bias), -1, -1)  # [E, B, H]
        self.hidden_as_columns = self.hidden.transpose(1, 2)
        self.outputs = bias.new_empty(*bias.shape, batch_size)

    @torch.no_grad()
    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        if isinstance(self.first, BoardConvolution) and self.architecture.takes_bits(obs):
            self.first.boards.copy_(self.architecture.with_channels_last(obs))
            self.first.sees_bits = True
            return self._forward()
        return self.forward_inputs(self.architecture.inputs(obs).view_as(self.rows))

    @torch.no_grad()
    def forward_inputs(self, rows: torch.Tensor) -> torch.Tensor:
        """The same from what the first layer multiplies. [1, B, ...], or a batch for each [E, B, ...] → [E, A, B]"""
        if isinstance(self.first, BoardConvolution):
            self.first.sees_bits = False
        self.rows.copy_(rows)
        return self._forward()

    def _forward(self) -> torch.Tensor:
        for layer in self.layers:
            layer.forward()
        return torch.baddbmm(self.bias_column, self.weight, self.hidden_as_columns, out=self.outputs)

    @torch.no_grad()
    def backward(self, error: torch.Tensor) -> None:
        torch.sum(error, -1, out=self.bias_grad)
        torch.bmm(error, self.hidden, out=self.weight_grad)
        if self.layers:
            last = self.layers[-1].error
            torch.bmm(error.transpose(1, 2), self.weight, out=last.view(*last.shape[:1], error.shape[-1], -1))
        for below, layer in reversed(list(itertools.pairwise([None, *self.layers]))):
            assert layer is not None
            layer.backward(None if below is None else below.error)


class HiddenLayer:
    """One layer of E networks: weights, gradients, what it sees and what comes out, with views of them as needed."""

    def __init__(self, ensemble: QEnsemble, name: str, seen: torch.Tensor) -> None:
        self.weight, self.bias, self.weight_grad, self.bias_grad = _with_gradient(ensemble, name)
        self.bias_row = self.bias.unsqueeze(1)
        self.weight_as_rows = self.weight.transpose(1, 2)
        n_networks, inputs, outputs = self.weight.shape
        self.seen = seen.view(len(seen), -1, inputs).expand(n_networks, -1, -1)  # [E, rows, inputs]
        self.seen_as_columns = self.seen.transpose(1, 2)
        self.activation = self.weight.new_empty(*self.seen.shape[:2], outputs)
        self.error = torch.empty_like(self.activation)
        normalised = f"{name}.norm.weight" in ensemble.weights
        self.norm: RectifiedNorm | None = None
        if normalised:
            self.norm = RectifiedNorm(self.activation, self.error, *_with_gradient(ensemble, f"{name}.norm"))

    def forward(self) -> None:
        """activation = max(0, seen · weight + bias), or max(0, norm(seen · weight + bias))"""
        torch.baddbmm(self.bias_row, self.seen, self.weight, out=self.activation)
        self.rectify()

    def rectify(self) -> None:
        if self.norm is None:
            self.activation.relu_()
        else:
            self.norm.forward()

    def backward(self, below: torch.Tensor | None) -> None:
        """Fills the gradients from ``error``, the loss's derivative by the activation, and makes it that by the sum.

        :param below: filled with the derivative by what the layer sees, if anybody asks
        """
        if self.norm is None:
            # A rectified output is positive where it let its input through.
            torch.ops.aten.threshold_backward.grad_input(self.error, self.activation, 0, grad_input=self.error)
        else:
            self.norm.backward()
        torch.sum(self.error, 1, out=self.bias_grad)
        self.pull_back(below)

    def pull_back(self, below: torch.Tensor | None) -> None:
        """From the derivative by the sums to those by the weights and by what is seen."""
        torch.bmm(self.seen_as_columns, self.error, out=self.weight_grad)
        if below is not None:
            torch.bmm(self.error, self.weight_as_rows, out=below.view(*self.error.shape[:2], -1))


class Convolution(HiddenLayer):
    """The first layer of networks that see boards, as a product over patches, which all of them share."""

    def __init__(self, ensemble: QEnsemble, name: str, seen: torch.Tensor, n_chunks: int) -> None:
        super().__init__(ensemble, name, seen)
        self.n_chunks = n_chunks
        self.networks = list(zip(self.activation, self.bias, self.weight, strict=True))

    def forward(self) -> None:
        """Patches are multiplied for one network after the other, each time by all cores.

        A core then reads the rows that it has filled; with a network each, cores would read what others wrote.
        """
        for activation, bias, weight in self.networks:
            torch.addmm(bias, self.seen[0], weight, out=activation)
        self.rectify()

    def pull_back(self, below: torch.Tensor | None) -> None:
        """Σ over rows in as many chunks as a convolution has positions: one long sum would keep one core busy."""
        chunks = self.seen[0].view(self.n_chunks, -1, self.seen.shape[-1]).transpose(1, 2)
        for grad, error in zip(self.weight_grad, self.error, strict=True):
            torch.sum(torch.bmm(chunks, error.view(self.n_chunks, -1, error.shape[-1])), 0, out=grad)


class BoardConvolution(Convolution):
    """The same where boards are bits and there is a compiler: then the layer above computes both (``boards``)."""

    def __init__(self, ensemble: QEnsemble, name: str, seen: torch.Tensor, n_chunks: int) -> None:
        super().__init__(ensemble, name, seen, n_chunks)
        architecture = ensemble.architecture
        assert isinstance(architecture, ConvMlp)
        board = torch.empty(architecture.observation_space.shape or ())
        shape = architecture.with_channels_last(board).shape
        self.boards = torch.empty(seen.shape[1], *shape, dtype=torch.bool)
        """What is seen, if it is bits. [B, H, W, C]"""
        self.sees_bits = False
        """It is not under VecNormalize."""
        self.patches = DistinctPatches(self.boards, architecture.conv_arch[0][1])

    def forward(self) -> None:
        if not self.sees_bits:
            super().forward()

    def backward(self, below: torch.Tensor | None) -> None:
        if not self.sees_bits:
            super().backward(below)


class BoardLayer(HiddenLayer):
    """The layer above that, which does the work of both where boards are bits."""

    def __init__(self, ensemble: QEnsemble, name: str, seen: torch.Tensor, below: BoardConvolution) -> None:
        super().__init__(ensemble, name, seen)
        self.below, patches, norm = below, below.patches, below.norm
        given = (norm.gain, norm.shift) if norm else None
        # Of which there are as many as there are patches, in another order.
        kept = below.activation, norm.normalised if norm else None, norm.precision if norm else None
        n_networks, inputs, filters = below.weight.shape
        self.sums = below.weight.new_empty(torch.get_num_threads(), n_networks, inputs + 3, filters)
        filters_and_bias, layer = (below.weight, below.bias), (self.weight, self.bias)
        self._multiply = boards.sums_above(patches, filters_and_bias, given, layer, self.activation, kept)
        self._differentiate = boards.differentiate(
            patches, kept, norm.gain if norm else None, self.weight, self.error, self.weight_grad, self.sums
        )

    def forward(self) -> None:
        if not self.below.sees_bits:
            super().forward()
            return
        self.below.patches.find()
        self._multiply()
        self.rectify()

    def pull_back(self, below: torch.Tensor | None) -> None:
        if not self.below.sees_bits:
            super().pull_back(below)
            return
        self._differentiate()
        sums = self.sums.sum(0) if len(self.sums) > 1 else self.sums[0]
        self.below.weight_grad.copy_(sums[:, :-3])
        self.below.bias_grad.copy_(sums[:, -3])
        if self.below.norm is not None:
            self.below.norm.gain_grad.copy_(sums[:, -2])
            self.below.norm.shift_grad.copy_(sums[:, -1])


def _layer(ensemble: QEnsemble, name: str, seen: torch.Tensor, n_chunks: int, below: HiddenLayer | None) -> HiddenLayer:
    if not name.startswith("conv"):
        if isinstance(below, BoardConvolution):
            return BoardLayer(ensemble, name, seen, below)
        return HiddenLayer(ensemble, name, seen)
    architecture = ensemble.architecture
    assert isinstance(architecture, ConvMlp)
    bits = architecture.observation_space.dtype == bool and architecture.takes_bits(
        torch.empty(1, *architecture.observation_space.shape or (), dtype=torch.bool, device=ensemble.device)
    )
    return (BoardConvolution if bits else Convolution)(ensemble, name, seen, n_chunks)


def _with_gradient(ensemble: QEnsemble, layer: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Weight and bias of a layer, without a graph, and their gradients, which the optimiser will find."""
    weight, bias = ensemble.weights[f"{layer}.weight"], ensemble.weights[f"{layer}.bias"]
    gradients = torch.empty_like(weight), torch.empty_like(bias)
    if weight.requires_grad:
        weight.grad, bias.grad = gradients
    return weight.detach(), bias.detach(), *gradients
