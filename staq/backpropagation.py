"""Gradients of an ensemble's weights from the error at its outputs: by autograd, or written out where faster."""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import nn

from staq.q_networks import ConvMlp, QEnsemble


class Backpropagation(Protocol):
    """Two halves of a gradient step; what lies between them, the loss, is up to the caller."""

    def forward(self, kept: torch.Tensor) -> torch.Tensor:
        """Outputs of each network, without a graph; valid until the next call. [B, ...] → [E, A, B]

        :param kept: what the architecture keeps of B observations
        """

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


class Autograd:
    """What every other has to equal."""

    def __init__(self, ensemble: QEnsemble) -> None:
        self.ensemble = ensemble

    def forward(self, kept: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            self.outputs = self.ensemble.architecture.q_of_kept(self.ensemble.weights, kept)
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
        self.n_pieces = math.prod(positions)
        inputs = next((size[0] for size in self.architecture.trunk_shapes.values()), self.architecture.hidden_size)
        n_batches = 1 if shared else len(ensemble.weights["output.bias"])
        self.rows = torch.empty(n_batches, batch_size, *positions, inputs, device=ensemble.device)
        layers = []
        seen = self.rows
        for name in ensemble.architecture.trunk_shapes:
            layers.append(HiddenLayer(ensemble, name, seen))
            seen = layers[-1].activation
        self.layers = layers
        self.weight, bias, self.weight_grad, self.bias_grad = _with_gradient(ensemble, "output")
        self.bias_column = bias.unsqueeze(-1)
        self.hidden = seen.reshape(len(seen), batch_size, -1).expand(len(bias), -1, -1)  # [E, B, H]
        self.hidden_as_columns = self.hidden.transpose(1, 2)
        self.outputs = bias.new_empty(*bias.shape, batch_size)

    @torch.no_grad()
    def forward(self, kept: torch.Tensor) -> torch.Tensor:
        if kept.dtype == torch.bool and kept.dim() == 2:  # bits become floats on their way into the rows
            first_input = kept.view(torch.uint8)
        else:
            first_input = self.architecture.prepared(kept)
        return self.forward_prepared(first_input.view_as(self.rows))

    @torch.no_grad()
    def forward_prepared(self, rows: torch.Tensor) -> torch.Tensor:
        """The same from what the first layer multiplies. [1, B, ...], or a batch for each [E, B, ...] → [E, A, B]"""
        self.rows.copy_(rows)
        for layer in self.layers:
            layer.forward()
        return torch.baddbmm(self.bias_column, self.weight, self.hidden_as_columns, out=self.outputs)

    @torch.no_grad()
    def backward(self, error: torch.Tensor) -> None:
        torch.sum(error, -1, out=self.bias_grad)
        torch.bmm(error, self.hidden, out=self.weight_grad)
        above, weight = error.transpose(1, 2), self.weight  # [E, B, A], [E, A, H]
        for i in range(len(self.layers) - 1, -1, -1):
            layer = self.layers[i]
            torch.bmm(above, weight, out=layer.error.view(*above.shape[:2], -1))
            # A rectified output is positive where it let its input through.
            torch.ops.aten.threshold_backward.grad_input(layer.error, layer.activation, 0, grad_input=layer.error)
            torch.sum(layer.error, 1, out=layer.bias_grad)
            if layer.convolves:
                self._weight_gradient_of_patches(layer)
            else:
                torch.bmm(layer.seen_as_columns, layer.error, out=layer.weight_grad)
            above, weight = layer.error, layer.weight_as_rows

    def _weight_gradient_of_patches(self, layer: HiddenLayer) -> None:
        """Σ over rows in as many pieces as a convolution has positions: one long sum would keep one core busy."""
        pieces = layer.seen[0].view(self.n_pieces, -1, layer.seen.shape[-1]).transpose(1, 2)
        for grad, error in zip(layer.weight_grad, layer.error, strict=True):
            torch.sum(torch.bmm(pieces, error.view(self.n_pieces, -1, error.shape[-1])), 0, out=grad)


class HiddenLayer:
    """One layer of E networks: weights, gradients, what it sees and what comes out, with views of them as needed."""

    def __init__(self, ensemble: QEnsemble, name: str, seen: torch.Tensor) -> None:
        weight, bias, self.weight_grad, self.bias_grad = _with_gradient(ensemble, name)
        self.weight = weight
        self.bias_row = bias.unsqueeze(1)
        self.weight_as_rows = self.weight.transpose(1, 2)
        self.seen = seen.view(len(seen), -1, weight.shape[1]).expand(len(weight), -1, -1)  # [E, rows, inputs]
        self.seen_as_columns = self.seen.transpose(1, 2)
        self.activation = weight.new_empty(*self.seen.shape[:2], weight.shape[-1])
        self.error = torch.empty_like(self.activation)
        self.convolves = name.startswith("conv")
        self.networks = list(zip(self.activation, bias, self.weight, strict=True))

    def forward(self) -> None:
        """activation = max(0, seen · weight + bias)

        Patches, which all networks share, are multiplied for one after the other, each time by all cores. A core then
        reads the rows that it has filled; with one network per core, each would read what others have written.
        """
        if self.convolves:
            for activation, bias, weight in self.networks:
                torch.addmm(bias, self.seen[0], weight, out=activation)
        else:
            torch.baddbmm(self.bias_row, self.seen, self.weight, out=self.activation)
        self.activation.relu_()


def _with_gradient(ensemble: QEnsemble, layer: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Weight and bias of a layer, without a graph, and their gradients, which the optimiser will find."""
    weight, bias = ensemble.weights[f"{layer}.weight"], ensemble.weights[f"{layer}.bias"]
    gradients = torch.empty_like(weight), torch.empty_like(bias)
    if weight.requires_grad:
        weight.grad, bias.grad = gradients
    return weight.detach(), bias.detach(), *gradients
