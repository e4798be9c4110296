"""The gradient of the critics' regression (Eq. 13): by autograd for any network, in closed form for common ones."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from staq.q_networks import ConvMlp, QEnsemble
from staq.soft_bellman import half_mse

Gradient = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""(observations [B, ...], actions [B], targets [B]) → q of the actions taken [E, B]; fills every ``.grad``."""


def regression_gradient(ensemble: QEnsemble, batch_size: int) -> Gradient:
    """The fastest exact gradient that there is for an ensemble."""
    architecture = ensemble.architecture
    # A second convolution would need its patches folded back: left to autograd.
    if (
        isinstance(architecture, ConvMlp)
        and type(architecture.activation) is nn.ReLU
        and len(architecture.conv_arch) <= 1
    ):
        return ClosedFormGradient(ensemble, batch_size)
    return AutogradGradient(ensemble)


class AutogradGradient:
    """What every gradient has to equal."""

    def __init__(self, ensemble: QEnsemble) -> None:
        self.ensemble = ensemble

    def __call__(self, obs: torch.Tensor, actions: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        q = self.ensemble(obs)  # [E, A, B]
        taken = q.gather(1, actions.expand(len(q), 1, -1)).squeeze(1)  # [E, B]
        self.ensemble.zero_grad()
        half_mse(taken, target).backward()
        return taken.detach()


class ClosedFormGradient:
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
        self.q = bias.new_empty(*bias.shape, batch_size)
        self.q_error = torch.empty_like(self.q)

    @torch.no_grad()
    def __call__(self, obs: torch.Tensor, actions: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        inputs = self._forward(obs)
        index = actions.expand(len(self.q), 1, -1)
        taken = self.q.gather(1, index).squeeze(1)  # [E, B]
        self.q_error.zero_().scatter_(1, index, (taken - target).div_(self.batch_size).unsqueeze(1))
        self._backward(inputs)
        return taken

    def _forward(self, obs: torch.Tensor) -> list[torch.Tensor]:
        """Fills activations and q; returns what each layer saw, [E, rows, inputs]."""
        x, inputs = self.architecture.first_input(obs), []
        for weight, bias, activation in zip(self.weights, self.biases, self.activations, strict=False):
            inputs.append(x.reshape(x.shape[0], -1, weight.shape[1]).expand(len(weight), -1, -1))
            x = torch.baddbmm(bias.unsqueeze(1), inputs[-1], weight, out=activation).relu_()
        inputs.append(x.view(x.shape[0], self.batch_size, -1).expand(len(self.q), -1, -1))
        torch.baddbmm(self.biases[-1].unsqueeze(-1), self.weights[-1], inputs[-1].transpose(1, 2), out=self.q)
        return inputs

    def _backward(self, inputs: list[torch.Tensor]) -> None:
        torch.sum(self.q_error, -1, out=self.bias_grads[-1])
        torch.bmm(self.q_error, inputs[-1], out=self.weight_grads[-1])
        above, weight = self.q_error.transpose(1, 2), self.weights[-1]  # [E, B, A], [E, A, H]
        for i in range(len(self.activations) - 1, -1, -1):
            error, seen = self.errors[i], inputs[i]
            torch.bmm(above, weight, out=error.view(inputs[i + 1].shape))
            # A rectified output is positive where it let its input through.
            torch.ops.aten.threshold_backward.grad_input(error, self.activations[i], 0, grad_input=error)
            torch.sum(error, 1, out=self.bias_grads[i])
            if i > 0:
                torch.bmm(seen.transpose(1, 2), error, out=self.weight_grads[i])
                above, weight = error, self.weights[i].transpose(1, 2)
            else:
                self._first_weight_gradient(seen[0], error)

    def _first_weight_gradient(self, seen: torch.Tensor, error: torch.Tensor) -> None:
        """Σ over rows in as many pieces as a convolution has positions: one long sum would keep one core busy."""
        pieces = seen.view(self.architecture.n_positions, -1, seen.shape[-1]).transpose(1, 2)
        for grad, error_of_network in zip(self.weight_grads[0], error, strict=True):
            torch.sum(pieces @ error_of_network.view(len(pieces), -1, error.shape[-1]), 0, out=grad)
