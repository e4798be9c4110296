"""Adam, with less to do between two steps."""

from __future__ import annotations

from typing import Any

import torch


class FusedAdam(torch.optim.Adam):
    """``torch.optim.Adam(fused=True)``: the same kernel and the same state, called directly.

    PyTorch's ``step`` looks at every group, tensor and flag anew each time, which costs more than the arithmetic of a
    small network. It still takes the first step, and every one where more than plain Adam is asked for. As there,
    parameters without a gradient stay as they are.
    """

    def __init__(self, params: Any, lr: float = 1e-3, **more: Any) -> None:
        super().__init__(params, lr=lr, fused=True, **more)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        group = self.param_groups[0]
        params = [p for p in group["params"] if p.grad is not None]
        plain = not (group["amsgrad"] or group["maximize"] or group["weight_decay"] or len(self.param_groups) > 1)
        if closure is not None or not plain or any(p not in self.state for p in params):
            return super().step(closure)
        states = [self.state[p] for p in params]
        steps = [state["step"] for state in states]
        torch._foreach_add_(steps, 1)
        torch._fused_adam_(
            params,
            [p.grad for p in params],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            steps,
            lr=group["lr"],
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            weight_decay=0.0,
            eps=group["eps"],
            amsgrad=False,
            maximize=False,
        )
        return None
