"""Optimisers by name, gradients that are clipped, and RAdam in one kernel."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch

from staq.networks import kernels


def clipped_step(optimizer: torch.optim.Optimizer, max_norm: float) -> None:
    """Takes a step along gradients of all weights together that are no longer than a norm."""
    if isinstance(optimizer, RAdam):
        optimizer.step(max_norm=max_norm)
        return
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    torch.nn.utils.clip_grad_norm_(weights, max_norm)
    optimizer.step()


class RAdam(torch.optim.Optimizer):
    """Adam whose steps are shortened while its variances rest on few gradients; ``torch.optim.RAdam``'s numbers.

    PyTorch has no fused RAdam: on a CPU its step and the clipping before it take a fifth of the time of a gradient,
    and this a twentieth (``kernels/adam.c``).
    """

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "n_steps": 0})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None, max_norm: float = math.inf) -> None:  # type: ignore[override]
        """:param max_norm: to which the gradients of a group are clipped, all together; they themselves are left"""
        assert closure is None
        for group in self.param_groups:
            weights = [weight for weight in group["params"] if weight.grad is not None]
            for weight in weights:
                if not self.state[weight]:
                    self.state[weight] = {"exp_avg": torch.zeros_like(weight), "exp_avg_sq": torch.zeros_like(weight)}
            group["n_steps"] += 1
            t, (beta1, beta2) = group["n_steps"], group["betas"]
            shortened = rectification(t, beta2)
            rate = (shortened or 1.0) * group["lr"] / (1 - beta1**t)
            root = math.sqrt(1 - beta2**t) if shortened else 0.0
            kernel = kernels.load("adam") if all(map(_suits, weights)) else None
            if kernel is None:
                self._step_by_pytorch(weights, group, rate, root, max_norm)
                continue
            moments = ([self.state[weight][name] for weight in weights] for name in ("exp_avg", "exp_avg_sq"))
            tensors = (weights, [weight.grad for weight in weights], *moments)
            sizes = (ctypes.c_long * len(weights))(*(weight.numel() for weight in weights))
            scales = (float(max_norm if max_norm < math.inf else 0.0), rate, beta1, beta2, root, group["eps"])
            kernels.call(kernel.step, len(weights), *map(_addresses, tensors), sizes, *scales, torch.get_num_threads())

    def _step_by_pytorch(
        self, weights: list[torch.Tensor], group: dict[str, Any], rate: float, root: float, max_norm: float
    ) -> None:
        beta1, beta2 = group["betas"]
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        if max_norm < math.inf:
            norm = torch.nn.utils.get_total_norm(gradients)
            share = (max_norm / (norm + 1e-6)).clamp(max=1.0)
            gradients = [gradient * share for gradient in gradients]
        for weight, gradient in zip(weights, gradients, strict=True):
            mean, square = self.state[weight]["exp_avg"], self.state[weight]["exp_avg_sq"]
            mean.lerp_(gradient, 1 - beta1)
            square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
            if root:
                weight.addcdiv_(mean, square.sqrt().div_(root).add_(group["eps"]), value=-rate)
            else:  # too few gradients for a variance: a step along their mean
                weight.sub_(mean, alpha=rate)


def _addresses(tensors: Iterable[torch.Tensor | None]) -> ctypes.Array[ctypes.c_void_p]:
    found = [tensor.data_ptr() for tensor in tensors if tensor is not None]
    return (ctypes.c_void_p * len(found))(*found)


def _suits(weight: torch.Tensor) -> bool:
    return all(
        t is not None and t.device.type == "cpu" and t.dtype == torch.float32 and t.is_contiguous()
        for t in (weight, weight.grad)
    )


def rectification(t: int, beta2: float) -> float:
    """r_t, by which RAdam shortens its t-th step; 0 while the variance is not tractable (ρ_t ≤ 5)."""
    longest = 2 / (1 - beta2) - 1
    length = longest - 2 * t * beta2**t / (1 - beta2**t)
    if length <= 5:
        return 0.0
    return math.sqrt((length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length))


def optimizer_named(name: str) -> type[torch.optim.Optimizer]:
    """ "RAdam", "Adam" …, as configurations say it."""
    if name == "RAdam":
        return RAdam
    found = getattr(torch.optim, name, None)
    if not (isinstance(found, type) and issubclass(found, torch.optim.Optimizer)):
        raise ValueError(f"optimizer_class={name!r} is no optimiser of torch.optim, such as Adam or RAdam.")
    return found
