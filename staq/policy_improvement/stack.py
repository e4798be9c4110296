"""StaQ's update: push q_k onto the stack. No optimisation, and no error (Sec. 5)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch

from staq.hyperparameters import Group, Requirement, at_least, one_of, setting
from staq.networks.architecture import Architecture, Weights
from staq.networks.ensemble import QEnsemble
from staq.policy_improvement.improvement import LogitsChange, PolicyImprovement
from staq.policy_improvement.mirror_descent import StepSize, memory_correction
from staq.policy_improvement.q_stack import QStack

if TYPE_CHECKING:
    from staq.experience.states import States


class Stack(PolicyImprovement):
    """The policy of Eq. 2, or without a limit of memory that of Eq. 1."""

    @dataclass(frozen=True)
    class Settings(Group):
        """How much of the past the policy consists of."""

        memory_size: int | None = setting(
            300,
            "M, how many Q-functions the policy consists of; None keeps all (exact mirror descent)",
            at_least(1, or_none="to keep all"),
        )
        # With a constant entropy weight the two are the same.
        weighting: Literal["current", "exact"] = setting(
            "current",
            'which α an old Q-function has under annealing: that of the "current" iteration, as in the paper\'s '
            'experiments, or its own ("exact" maximiser of Eq. 4)',
            one_of("current", "exact"),
        )

    def __init__(self, architecture: Architecture, n_critics: int, settings: Settings) -> None:
        super().__init__(architecture, n_critics, settings)
        self.stack = QStack(architecture, n_critics, settings.memory_size)

    @property
    def memory_size(self) -> int | None:  # type: ignore[override]
        return self.stack.memory_size

    def accumulated(self, obs: torch.Tensor) -> torch.Tensor:
        return self.stack.accumulated(obs)

    def accumulated_and_q(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        return self.stack.accumulated_and_newest_q(obs) if len(self.stack) else super().accumulated_and_q(obs)

    def froze(self, q_net: QEnsemble) -> bool:
        if not len(self.stack):
            return False
        newest = self.stack.ensemble(self.stack.n_pushed - 1)
        return all(torch.equal(w, newest[name]) for name, w in q_net.weights.items())

    def logits(self, accumulated: torch.Tensor) -> torch.Tensor:
        return self.stack.logits(accumulated)

    def begin_iteration(self, step_size: StepSize) -> None:
        correction = memory_correction(step_size.beta, self.stack.memory_size)
        self.stack.prefactor = correction * (step_size.alpha if self.settings.weighting == "current" else 1.0)

    def improve(self, q_net: QEnsemble, states: States, step_size: StepSize) -> LogitsChange:
        new_weight = 1.0 if self.settings.weighting == "current" else step_size.alpha
        return self.stack.push(q_net.weights, step_size.beta, new_weight)

    def as_stack(self) -> dict[str, Any]:
        return self.stack.get_extra_state()

    def frozen_q_values(self, obs: torch.Tensor) -> torch.Tensor:
        return self.stack.q_values(obs)

    def frozen_names(self) -> list[str]:
        return [f"frozen-{push:06d}.pt" for push in self.stack.retained_pushes]

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


class UnlimitedStack(Stack):
    """The policy of Eq. 1: nothing is ever deleted."""

    @dataclass(frozen=True)
    class Settings(Stack.Settings):
        """How an old Q-function is weighted."""

        memory_size: int | None = setting(
            None,
            "always None",
            Requirement(lambda v: v is None, "None: ExactPMD keeps every Q-function; use StaQ for a limit"),
        )
