"""StaQ's update: push q_k onto the stack. No optimisation, and no error (Sec. 5)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import torch

from staq.actions import Factors
from staq.mirror_descent import StepSize, centred, memory_correction, pushed_weights
from staq.q_networks import Architecture, QEnsemble, Weights
from staq.q_stack import QStack
from staq.replay import Replay
from staq.updates.policy_update import PolicyUpdate

Weighting = Literal["current", "exact"]


class StackUpdate(PolicyUpdate):
    """The policy of Eq. 2, or without a limit of memory that of Eq. 1.

    While the entropy weight is annealed, ``weighting`` says which α multiplies an old Q-function: the one of
    the "current" iteration, as in the authors' experiments, or its own, which keeps the policy the "exact"
    maximiser of Eq. 4. With a constant entropy weight the two are the same.
    """

    def __init__(
        self,
        architecture: Architecture,
        n_critics: int,
        memory_size: int | None,
        weighting: Weighting,
    ) -> None:
        super().__init__()
        self.weighting = weighting
        self.stack = QStack(architecture, n_critics, memory_size)

    def accumulated(self, obs: torch.Tensor) -> torch.Tensor:
        return self.stack.accumulated(obs)

    def logits(self, accumulated: torch.Tensor) -> torch.Tensor:
        return self.stack.logits(accumulated)

    def begin_iteration(self, step_size: StepSize) -> None:
        correction = memory_correction(step_size.beta, self.stack.memory_size)
        self.stack.prefactor = correction * (step_size.alpha if self.weighting == "current" else 1.0)

    @torch.no_grad()
    def improve(self, q_net: QEnsemble, replay: Replay, step_size: StepSize) -> None:
        """c_{k+1} = β_k c_k + w q_k − w' q_{k−M} for the replay (two networks, whatever M), then the push."""
        beta = step_size.beta
        new_weight = 1.0 if self.weighting == "current" else step_size.alpha
        _, deleted_weight = pushed_weights(self.stack.relative_weights, beta, new_weight, self.stack.memory_size)
        new, oldest, evaluate = q_net.weights, self.stack.oldest, q_net.architecture.q_of_kept
        factors = q_net.architecture.factors
        for rows in replay.filled_rows():
            kept = replay.next_kept[rows]
            change = new_weight * mean_centred(evaluate(new, kept), factors)
            if oldest is not None and deleted_weight is not None:
                change -= deleted_weight * mean_centred(evaluate(oldest, kept), factors)
            replay.accumulated[rows] = beta * replay.accumulated[rows] + change
        self.stack.push(new, beta, new_weight)

    def as_stack(self) -> dict[str, Any]:
        return self.stack.get_extra_state()

    def frozen_q_values(self, obs: torch.Tensor) -> torch.Tensor:
        return self.stack.q_values(obs)

    def frozen_names(self) -> list[str]:
        return [f"frozen-{push:06d}.pt" for push in self.stack.kept_pushes]

    def frozen(self, name: str) -> dict[str, torch.Tensor]:
        return self.stack.ensemble(int(name.removeprefix("frozen-").removesuffix(".pt")))

    def checkpoint(self) -> dict[str, Any]:
        stack = self.stack
        return {
            "n_pushed": stack.n_pushed,
            "relative_weights": list(stack.relative_weights),
            "prefactor": stack.prefactor,
        }

    def load_checkpoint(self, state: dict[str, Any], frozen: Iterable[Weights]) -> None:
        self.stack.restore(**state, ensembles=frozen)

    def diagnostics(self) -> dict[str, float]:
        weights = self.stack.relative_weights
        return {
            "stack_size": len(weights),
            "oldest_weight": self.stack.prefactor * weights[0] if weights else 0.0,
        }


def mean_centred(q: torch.Tensor, factors: Factors) -> torch.Tensor:
    """The ensemble's mean, centred over the actions of each part, in float64. [E, A, B] → [B, A]"""
    return factors.each(centred, q.double().mean(0).t())
