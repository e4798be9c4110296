"""Layer normalisation of many networks' layers, with the rectification that follows it."""

from __future__ import annotations

import ctypes
from typing import Literal

import torch

from staq.networks import kernels

Norm = Literal["layer"] | None
EPSILON = 1e-5
"""PyTorch's."""


def layer_norm(x: torch.Tensor, gain: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """gain · (x − mean)/deviation + shift, over a layer's outputs. [N, B, O], [N, O], [N, O] → [N, B, O]"""
    normalised = torch.nn.functional.layer_norm(x, x.shape[-1:], eps=EPSILON)
    return torch.addcmul(shift.unsqueeze(1), gain.unsqueeze(1), normalised)


def rectified_norm_(x: torch.Tensor, gain: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """max(0, layer_norm(x)) of networks that nobody differentiates, in place where there is a kernel."""
    kernel = _kernel(x, gain, shift)
    if kernel is None:
        return layer_norm(x, gain, shift).relu_()
    kernels.bound(kernel.forward, x, gain, shift, None, None, *x.shape, EPSILON, torch.get_num_threads())()
    return x


class RectifiedNorm:
    """max(0, layer_norm(x)) in place, and its way back, on buffers that are made once.

    :param x: where the layer's sums will be, and its activation afterwards [E, rows, outputs]
    :param error: where the loss's derivative by the activation will be, and that by the sums afterwards
    :param gain, shift: [E, outputs], and where their gradients go
    """

    def __init__(
        self,
        x: torch.Tensor,
        error: torch.Tensor,
        gain: torch.Tensor,
        shift: torch.Tensor,
        gain_grad: torch.Tensor,
        shift_grad: torch.Tensor,
    ) -> None:
        self.x, self.error, self.gain, self.shift = x, error, gain, shift
        self.gain_grad, self.shift_grad = gain_grad, shift_grad
        self.normalised = torch.empty_like(x)
        self.precision = x.new_empty(*x.shape[:2], 1)
        self.kernel = _kernel(x, gain, shift)
        if self.kernel is not None:
            threads, precision = torch.get_num_threads(), self.precision
            self.sums = x.new_empty(threads, len(x), 2, x.shape[-1])
            there = x, gain, shift, self.normalised, precision, *x.shape, EPSILON, threads
            back = error, x, self.normalised, precision, gain, self.sums, *x.shape, threads
            self._forward = kernels.bound(self.kernel.forward, *there)
            self._backward = kernels.bound(self.kernel.backward, *back)

    def forward(self) -> None:
        if self.kernel is None:
            found = torch.native_layer_norm(self.x, self.x.shape[-1:], None, None, EPSILON)
            self.normalised, _, self.precision = found
            torch.addcmul(self.shift.unsqueeze(1), self.gain.unsqueeze(1), self.normalised, out=self.x).relu_()
            return
        self._forward()

    def backward(self) -> None:
        """Makes the loss's derivative by the activation that by the sums, in place."""
        if self.kernel is None:
            error = self.error
            # A rectified output is positive where it let its input through.
            torch.ops.aten.threshold_backward.grad_input(error, self.x, 0, grad_input=error)
            torch.sum(error * self.normalised, 1, out=self.gain_grad)
            torch.sum(error, 1, out=self.shift_grad)
            error *= self.gain.unsqueeze(1)
            slope = (error * self.normalised).mean(-1, keepdim=True)
            error -= error.mean(-1, keepdim=True)
            error.addcmul_(self.normalised, slope, value=-1).mul_(self.precision)
            return
        self._backward()
        sums = self.sums.sum(0) if len(self.sums) > 1 else self.sums[0]
        self.gain_grad.copy_(sums[:, 0])
        self.shift_grad.copy_(sums[:, 1])


def _kernel(*tensors: torch.Tensor) -> ctypes.CDLL | None:
    fits = tensors[0].shape[-1] % 16 == 0 and all(
        t.device.type == "cpu" and t.dtype == torch.float32 and t.is_contiguous() for t in tensors
    )
    return kernels.load("layer_norm") if fits else None
