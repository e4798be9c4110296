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

    PyTorch has no fused RAdam. On a CPU this one clips and steps in one call (``kernels/adam.c``), since every small
    call between two large products is slow.
    """

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "n_steps": 0})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None, max_norm: float = math.inf) -> None:  # type: ignore[override]
        """:param max_norm: to which the gradients of a group are clipped, all together; they themselves are left"""
        assert closure is None
        known: dict[int, _Tensors] = vars(self).setdefault("_tensors", {})  # which is not copied with an optimiser
        for i, group in enumerate(self.param_groups):
            if i not in known or not known[i].are_of(group["params"]):
                known[i] = _Tensors(group["params"], self.state)
            tensors, (beta1, beta2) = known[i], group["betas"]
            group["n_steps"] += 1
            shortened = rectification(group["n_steps"], beta2)
            rate = (shortened or 1.0) * group["lr"] / (1 - beta1 ** group["n_steps"])
            root = math.sqrt(1 - beta2 ** group["n_steps"]) if shortened else 0.0
            tensors.step(float(max_norm), rate, beta1, beta2, root, group["eps"])

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        vars(self).pop("_tensors", None)


class _Tensors:
    """Weights, gradients and their moments: found once, for as long as gradients stay where they are."""

    def __init__(self, params: list[torch.Tensor], state: dict[Any, Any]) -> None:
        self.grads = [weight.grad for weight in params]
        self.weights = [weight for weight in params if weight.grad is not None]
        self.gradients = [weight.grad for weight in self.weights if weight.grad is not None]
        for weight in self.weights:
            if not state[weight]:
                state[weight] = {"exp_avg": torch.zeros_like(weight), "exp_avg_sq": torch.zeros_like(weight)}
        self.means = [state[weight]["exp_avg"] for weight in self.weights]
        self.squares = [state[weight]["exp_avg_sq"] for weight in self.weights]
        every = self.weights, self.gradients, self.means, self.squares
        suited = all(
            t.device.type == "cpu" and t.dtype == torch.float32 and t.is_contiguous() for ts in every for t in ts
        )
        self.kernel = kernels.load("adam") if suited else None
        n = len(self.weights)
        addresses = [(ctypes.c_void_p * n)(*(tensor.data_ptr() for tensor in tensors)) for tensors in every]
        sizes = (ctypes.c_long * n)(*(weight.numel() for weight in self.weights))
        self.arguments = (ctypes.c_long(n), *addresses, sizes)

    def are_of(self, params: list[torch.Tensor]) -> bool:
        return all(weight.grad is gradient for weight, gradient in zip(params, self.grads, strict=True))

    def step(self, max_norm: float, rate: float, beta1: float, beta2: float, root: float, epsilon: float) -> None:
        """:param root: √(1 − β2^t), or 0 for a step along the mean, while there are too few gradients for a variance"""
        if self.kernel is not None:
            scales = (max_norm, rate, beta1, beta2, root, epsilon)
            threads = ctypes.c_long(torch.get_num_threads())
            self.kernel.step(*self.arguments, *map(ctypes.c_float, scales), threads)
            return
        share = (max_norm / (torch.nn.utils.get_total_norm(self.gradients) + 1e-6)).clamp(max=1.0)
        every = zip(self.weights, self.gradients, self.means, self.squares, strict=True)
        for weight, gradient, mean, square in every:
            clipped = gradient * share
            mean.lerp_(clipped, 1 - beta1)
            square.mul_(beta2).addcmul_(clipped, clipped, value=1 - beta2)
            if root:
                weight.addcdiv_(mean, square.sqrt().div_(root).add_(epsilon), value=-rate)
            else:
                weight.sub_(mean, alpha=rate)


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
