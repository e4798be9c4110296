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

    It skips autograd's bookkeeping and its fresh memory for every activation, which at the paper's sizes is a
    third of a gradient step on a CPU.
    """

    def __init__(self, ensemble: QEnsemble, batch_size: int) -> None:
        assert isinstance(ensemble.architecture, ConvMlp)
        self.architecture = ensemble.architecture
        self.batch_size = batch_size
        self.weights: list[torch.Tensor] = []
        self.biases: list[torch.Tensor] = []
        self.weight_grads: list[torch.Tensor] = []
        self.bias_grads: list[torch.Tensor] = []
        self.outputs: list[torch.Tensor] = []
        for name in (*self.architecture.trunk_shapes, "output"):
            weight, bias = ensemble.weights[f"{name}.weight"], ensemble.weights[f"{name}.bias"]
            weight.grad, bias.grad = torch.empty_like(weight), torch.empty_like(bias)
            self.weights.append(weight.detach())
            self.biases.append(bias.detach())
            self.weight_grads.append(weight.grad)
            self.bias_grads.append(bias.grad)
            columns = batch_size * (self.architecture.n_positions if name.startswith("conv") else 1)
            self.outputs.append(weight.new_empty(*bias.shape, columns))
        # The error at a layer's output has the shape of that output, but is needed only until the next.
        self.errors = [torch.empty_like(output) for output in self.outputs]

    @torch.no_grad()
    def __call__(self, obs: torch.Tensor, actions: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        q, inputs = self._forward(obs)
        index = actions.expand(len(q), 1, -1)
        taken = q.gather(1, index).squeeze(1)  # [E, B]
        self.errors[-1].zero_().scatter_(1, index, (taken - target).div_(self.batch_size).unsqueeze(1))
        self._backward(inputs)
        return taken

    def _forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """q [E, A, B], and what each layer saw."""
        x, inputs = self.architecture.first_input(obs)[0], []
        for i, (weight, bias, output) in enumerate(zip(self.weights, self.biases, self.outputs, strict=True)):
            x = x.view(x.shape[0], weight.shape[-1], -1)  # from filters × positions to features
            inputs.append(x)
            if x.shape[0] == 1:  # all networks see the same
                torch.addmm(bias.view(-1, 1), weight.flatten(0, 1), x[0], out=output.view(-1, x.shape[-1]))
            else:
                torch.baddbmm(bias.unsqueeze(-1), weight, x, out=output)
            x = output if i == len(self.weights) - 1 else output.relu_()
        return x, inputs

    def _backward(self, inputs: list[torch.Tensor]) -> None:
        for i in range(len(self.weights) - 1, -1, -1):
            error, seen = self.errors[i], inputs[i]
            torch.sum(error, -1, out=self.bias_grads[i])
            if seen.shape[0] == 1:
                torch.mm(error.flatten(0, 1), seen[0].t(), out=self.weight_grads[i].flatten(0, 1))
            else:
                torch.bmm(error, seen.transpose(1, 2), out=self.weight_grads[i])
            if i == 0:
                return
            before = self.errors[i - 1]
            torch.bmm(self.weights[i].transpose(1, 2), error, out=before.view(seen.shape))
            # A rectified output is positive where it let its input through.
            torch.ops.aten.threshold_backward.grad_input(before, self.outputs[i - 1], 0, grad_input=before)
