"""StaQ's update: push q_k onto the stack. No optimisation, and no error (Sec. 5)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch

from staq.hyperparameters import POSITIVE, Group, Requirement, at_least, one_of, setting
from staq.networks.architecture import Architecture, Weights
from staq.networks.ensemble import QEnsemble
from staq.policy_improvement.improvement import LogitsChange, PolicyImprovement
from staq.policy_improvement.merging import Merging
from staq.policy_improvement.mirror_descent import StepSize, memory_correction
from staq.policy_improvement.q_stack import Entry, QStack

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
        compression: Literal["none", "merge"] = setting(
            "none", '"merge" merges old neighbours, so that k pushes are O(log k) networks', one_of("none", "merge")
        )
        merge_tolerance: float = setting(
            0.1, "how far a merge may move the policy, as a fraction of a median policy update", POSITIVE
        )

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.compression == "merge" and self.memory_size is not None:
                raise ValueError(
                    f"compression='merge' with memory_size={self.memory_size}: a merged network cannot be deleted from "
                    "a sum again, so merging is for exact mirror descent. Use memory_size=None, or compression='none'."
                )

    def __init__(self, architecture: Architecture, n_critics: int, settings: Settings) -> None:
        super().__init__(architecture, n_critics, settings)
        self.stack = QStack(architecture, n_critics, settings.memory_size)
        self.merging = Merging()

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
        newest = self.stack.ensemble(self.stack.entries[-1])
        return all(torch.equal(w, newest[name]) for name, w in q_net.weights.items())

    def logits(self, accumulated: torch.Tensor) -> torch.Tensor:
        return self.stack.logits(accumulated)

    def begin_iteration(self, step_size: StepSize) -> None:
        correction = memory_correction(step_size.beta, self.stack.memory_size)
        self.stack.prefactor = correction * (step_size.alpha if self.settings.weighting == "current" else 1.0)

    def improve(self, q_net: QEnsemble, states: States, step_size: StepSize) -> LogitsChange:
        if self.settings.compression == "merge":
            self.merging.merge_due(self.stack, states, self.settings.merge_tolerance)
        self.merging.distance *= step_size.beta  # merges fade as their members do
        new_weight = 1.0 if self.settings.weighting == "current" else step_size.alpha
        return self.stack.push(q_net.weights, step_size.beta, new_weight)

    def moved(self, kl: float) -> None:
        self.merging.movements.append(kl)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        """What a merged stack knows of itself, as tensors; of an empty one nothing."""
        if len(self.stack):
            state = self.merging.state_dict()
            state["refused"] = list(state["refused"].items())
            for name, numbers in state.items():
                destination[f"{prefix}merging.{name}"] = torch.tensor(numbers, dtype=torch.float64)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        if f"{prefix}_extra_state" in state_dict:  # of files that were pickled
            self.merging.load_state_dict(state_dict[f"{prefix}_extra_state"])
            return
        names = {name: f"{prefix}merging.{name}" for name in self.merging.state_dict()}
        if all(name in state_dict for name in names.values()):
            state = {name: state_dict[place] for name, place in names.items()}
            refused = {int(first): int(push) for first, push in state["refused"].tolist()}
            numbers = {name: state[name].tolist() for name in ("movements", "distance")}
            self.merging.load_state_dict(numbers | {"refused": refused})

    def as_stack(self) -> dict[str, Any]:
        return self.stack.state()

    def frozen_q_values(self, obs: torch.Tensor) -> torch.Tensor:
        return self.stack.q_values(obs)

    def frozen_names(self) -> list[str]:
        return [file_name(entry) for entry in self.stack.entries]

    def frozen(self, name: str) -> dict[str, torch.Tensor]:
        return next(self.stack.ensemble(entry) for entry in self.stack.entries if file_name(entry) == name)

    def checkpoint(self) -> dict[str, Any]:
        return {"stack": self.stack.description(), "merging": self.merging.state_dict()}

    def load_checkpoint(self, state: dict[str, Any], frozen: Iterable[Weights]) -> None:
        self.stack.restore(**state["stack"], ensembles=frozen)
        self.merging.load_state_dict(state["merging"])

    def diagnostics(self) -> dict[str, float]:
        stack = self.stack
        held = {
            "networks": len(stack),
            "pushes": stack.n_pushed,
            "oldest_weight": stack.prefactor * stack.entries[0].weight if len(stack) else 0.0,
        }
        if self.settings.compression == "none":
            return held
        return held | {"merge_kl": self.merging.last_kl, "merge_kl_bound": self.merging.kl_bound(stack.prefactor)}


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


def file_name(entry: Entry) -> str:
    """Of an entry's networks in a checkpoint: a range of pushes is merged once, so its name says which they are."""
    pushes = f"{entry.last:06d}" if entry.n_pushes == 1 else f"{entry.first:06d}-{entry.last:06d}"
    return f"frozen-{pushes}.safetensors"
