"""Gradients of an ensemble's weights from the error at its outputs: by autograd, or written out where faster."""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import nn

from staq.q_networks import OUTPUT_BIAS, ConvMlp, QEnsemble


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
    how few calls there are. And what one core has written is slow to reach another, so that on several of them every
    network has its own copy of the input: then a core that works on one network meets nothing of the others.
    """

    def __init__(self, ensemble: QEnsemble, batch_size: int) -> None:
        assert isinstance(ensemble.architecture, ConvMlp)
        self.architecture = ensemble.architecture
        n_networks, device = len(ensemble.weights[OUTPUT_BIAS]), ensemble.device
        several_cores = device.type == "cpu" and torch.get_num_threads() > 1
        positions = self.architecture.first_size
        self.n_pieces = math.prod(positions)
        inputs = next((size[0] for size in self.architecture.trunk_shapes.values()), self.architecture.hidden_size)
        self.rows = torch.empty(n_networks if several_cores else 1, batch_size, *positions, inputs, device=device)
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
        self.rows.copy_(first_input.view_as(self.rows[:1]))
        for layer in self.layers:
            torch.baddbmm(layer.bias_row, layer.seen, layer.weight, out=layer.activation).relu_()
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
            if i > 0:
                torch.bmm(layer.seen_as_columns, layer.error, out=layer.weight_grad)
                above, weight = layer.error, layer.weight_as_rows
            else:
                self._first_weight_gradient(layer)

    def _first_weight_gradient(self, layer: HiddenLayer) -> None:
        """Σ over rows in as many pieces as a convolution has positions: one long sum would keep one core busy."""
        copies, (inputs, outputs) = len(self.rows), layer.weight_grad.shape[1:]
        pieces = self.rows.view(copies * self.n_pieces, -1, inputs).transpose(1, 2)
        for error, grad in zip(layer.error.split(copies), layer.weight_grad.split(copies), strict=True):
            of_pieces = torch.bmm(pieces, error.view(len(pieces), -1, outputs))
            torch.sum(of_pieces.view(copies, self.n_pieces, inputs, outputs), 1, out=grad)


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


def _with_gradient(ensemble: QEnsemble, layer: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Weight and bias of a layer, without a graph, and their gradients, which the optimiser will find."""
    weight, bias = ensemble.weights[f"{layer}.weight"], ensemble.weights[f"{layer}.bias"]
    gradients = torch.empty_like(weight), torch.empty_like(bias)
    if weight.requires_grad:
        weight.grad, bias.grad = gradients
    return weight.detach(), bias.detach(), *gradients
