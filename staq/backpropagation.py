"""Gradients of an ensemble's weights from the error at its outputs: by autograd, or written out where faster."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import nn

from staq.q_networks import ConvMlp, QEnsemble


class Backpropagation(Protocol):
    """Two halves of a gradient step; what lies between them, the loss, is up to the caller."""

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        """Outputs of each network, without a graph; valid until the next call. → [E, A, B]"""

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

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            self.outputs = self.ensemble(obs)
        return self.outputs.detach()

    def backward(self, error: torch.Tensor) -> None:
        self.ensemble.zero_grad()
        self.outputs.backward(error)


class ClosedForm:
    """Back-propagation through ReLU layers, written out, on buffers that are allocated once.

    It skips autograd's bookkeeping and its fresh memory for every activation.
    """

    def __init__(self, ensemble: QEnsemble, batch_size: int) -> None:
        assert isinstance(ensemble.architecture, ConvMlp)
        self.architecture = ensemble.architecture
        self.batch_size = batch_size
        self.weights: list[torch.Tensor] = []
        self.biases: list[torch.Tensor] = []
        self.weight_grads: list[torch.Tensor] = []
        self.bias_grads: list[torch.Tensor] = []
        self.activations: list[torch.Tensor] = []  # [E, rows, outputs] of every hidden layer
        for name in (*self.architecture.trunk_shapes, "output"):
            weight, bias = ensemble.weights[f"{name}.weight"], ensemble.weights[f"{name}.bias"]
            weight.grad, bias.grad = torch.empty_like(weight), torch.empty_like(bias)
            self.weights.append(weight.detach())
            self.biases.append(bias.detach())
            self.weight_grads.append(weight.grad)
            self.bias_grads.append(bias.grad)
            if name != "output":
                rows = batch_size * (self.architecture.n_positions if name.startswith("conv") else 1)
                self.activations.append(weight.new_empty(len(weight), rows, weight.shape[-1]))
        # The error at a layer's output has the shape of that output.
        self.errors = [torch.empty_like(activation) for activation in self.activations]
        self.outputs = bias.new_empty(*bias.shape, batch_size)
        self.inputs: list[torch.Tensor] = []  # what each layer saw, [E, rows, inputs]

    @torch.no_grad()
    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        x, self.inputs = self.architecture.first_input(obs), []
        for weight, bias, activation in zip(self.weights, self.biases, self.activations, strict=False):
            self.inputs.append(x.reshape(x.shape[0], -1, weight.shape[1]).expand(len(weight), -1, -1))
            x = torch.baddbmm(bias.unsqueeze(1), self.inputs[-1], weight, out=activation).relu_()
        self.inputs.append(x.view(x.shape[0], self.batch_size, -1).expand(len(self.outputs), -1, -1))
        hidden = self.inputs[-1].transpose(1, 2)
        return torch.baddbmm(self.biases[-1].unsqueeze(-1), self.weights[-1], hidden, out=self.outputs)

    @torch.no_grad()
    def backward(self, error: torch.Tensor) -> None:
        torch.sum(error, -1, out=self.bias_grads[-1])
        torch.bmm(error, self.inputs[-1], out=self.weight_grads[-1])
        above, weight = error.transpose(1, 2), self.weights[-1]  # [E, B, A], [E, A, H]
        for i in range(len(self.activations) - 1, -1, -1):
            below, seen = self.errors[i], self.inputs[i]
            torch.bmm(above, weight, out=below.view(self.inputs[i + 1].shape))
            # A rectified output is positive where it let its input through.
            torch.ops.aten.threshold_backward.grad_input(below, self.activations[i], 0, grad_input=below)
            torch.sum(below, 1, out=self.bias_grads[i])
            if i > 0:
                torch.bmm(seen.transpose(1, 2), below, out=self.weight_grads[i])
                above, weight = below, self.weights[i].transpose(1, 2)
            else:
                self._first_weight_gradient(seen[0], below)

    def _first_weight_gradient(self, seen: torch.Tensor, error: torch.Tensor) -> None:
        """Σ over rows in as many pieces as a convolution has positions: one long sum would keep one core busy."""
        pieces = seen.view(self.architecture.n_positions, -1, seen.shape[-1]).transpose(1, 2)
        for grad, error_of_network in zip(self.weight_grads[0], error, strict=True):
            torch.sum(pieces @ error_of_network.view(len(pieces), -1, error.shape[-1]), 0, out=grad)
