"""Optimisers by name, and RAdam in one kernel."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch


class RAdam(torch.optim.Adam):
    """Adam whose steps are shortened while its variances rest on few gradients; ``torch.optim.RAdam``'s numbers.

    PyTorch has a fused kernel for Adam and none for RAdam, which differ by a factor on the learning rate: on a CPU
    that is a fifth of a gradient step.
    """

    def __init__(self, params: Iterable[Any], lr: float = 1e-3, **arguments: Any) -> None:
        super().__init__(params, lr=lr, **({"fused": True} | arguments))

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        rates = [group["lr"] for group in self.param_groups]
        for group in self.param_groups:
            group["n_steps"] = group.get("n_steps", 0) + 1  # known here too: reading it from a device would wait for it
            group["lr"] *= rectification(group["n_steps"], group["betas"][1])
        super().step(closure)
        for group, rate in zip(self.param_groups, rates, strict=True):
            if group["lr"] == 0.0:  # too few gradients for a variance: a step along their mean
                share = rate / (1 - group["betas"][0] ** group["n_steps"])
                for p in (p for p in group["params"] if p.grad is not None):
                    p.sub_(share * self.state[p]["exp_avg"])
            group["lr"] = rate


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
