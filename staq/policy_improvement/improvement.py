"""What the loop asks of a policy improvement."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn

from staq.actions import Factors
from staq.hyperparameters import Group
from staq.networks.architecture import Architecture, Weights
from staq.networks.ensemble import QEnsemble
from staq.policy_improvement.mirror_descent import StepSize, centred

if TYPE_CHECKING:
    from staq.experience.states import States


@dataclass(frozen=True)
class LogitsChange:
    """What a policy update does to the accumulated logits of every state: c ← decay · c + Σ coefficient · q."""

    decay: float
    networks: Sequence[tuple[Weights, float]]
    """Ensembles [E, ...] that enter, or with a negative coefficient leave."""

    def applied(self, accumulated: torch.Tensor, obs: torch.Tensor, architecture: Architecture) -> torch.Tensor:
        """c_{k+1} of states, from their c_k and observations. [B, A], [B, ...] → [B, A]"""
        total = self.decay * accumulated
        terms = (c * mean_centred(architecture.frozen_q_values(w, obs), architecture.factors) for w, c in self.networks)
        return total + sum(terms)


def mean_centred(q: torch.Tensor, factors: Factors) -> torch.Tensor:
    """The ensemble's mean, centred over the actions of each part, in float64. [E, A, B] → [B, A]"""
    return factors.each(centred, q.double().mean(0).t())


class PolicyImprovement(nn.Module, ABC):
    """A policy π ∝ exp(ξ) that is improved once per iteration.

    A new one needs three methods: ``accumulated`` to evaluate it, ``improve`` to improve it and ``as_stack`` to give it
    away. Its logits come in two steps, ``logits(accumulated(obs))``: what is accumulated over the past is costly and is
    stored with each replayed transition, what turns it into logits is not.
    """

    @dataclass(frozen=True)
    class Settings(Group):
        """Hyperparameters of this update: none, unless it says so."""

    settings: Any
    """A ``Settings``, brought up to date before every update."""
    optimizer: torch.optim.Optimizer | None = None
    """Of an update that ``trains``: the policy makes one like the critics' own."""
    trains: ClassVar[bool] = False
    """Whether its parameters are trained by an optimiser."""
    memory_size: int | None = 1
    """How many ensembles ``as_stack`` may have, None for any number."""

    def __init__(self, architecture: Architecture, n_critics: int, settings: Any) -> None:
        super().__init__()
        self.architecture, self.n_critics, self.settings = architecture, n_critics, settings

    @abstractmethod
    def accumulated(self, obs: torch.Tensor) -> torch.Tensor:
        """The costly part c of the logits. [B, ...] → float64 [B, A]"""

    @abstractmethod
    def improve(self, q_net: QEnsemble, states: States, step_size: StepSize) -> LogitsChange | None:
        """π_k → π_{k+1} from q_k. → what it does to every c, or None if they must be computed anew"""

    @abstractmethod
    def as_stack(self) -> dict[str, Any]:
        """The policy as a stack of networks, in ``QStack``'s format: what an export carries."""

    def accumulated_and_q(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """c, and q of the critics as they were when last pushed, where it comes with it for nothing. → [B, A] each"""
        return self.accumulated(obs), None

    def froze(self, q_net: QEnsemble) -> bool:
        """Whether ``accumulated_and_q`` gives q of these very critics."""
        return False

    def logits(self, accumulated: torch.Tensor) -> torch.Tensor:
        """ξ of the current policy. [B, A] → [B, A]"""
        return accumulated

    def begin_iteration(self, step_size: StepSize) -> None:
        """Makes the policy that of an iteration with the given entropy weight."""

    def moved(self, kl: float) -> None:
        """Hears how far its last update moved the policy: the mean KL(π_{k+1}; π_k)."""

    def diagnostics(self) -> dict[str, float]:
        """What is worth logging of the policy itself, under ``staq/``."""
        return {}

    def frozen_q_values(self, obs: torch.Tensor) -> torch.Tensor:
        """q of every frozen ensemble that the policy consists of, oldest first. → [n, E, A, B]"""
        return torch.empty(0, self.n_critics, self.architecture.n_actions, len(obs), device=obs.device)

    def frozen_names(self) -> list[str]:
        """File names of the parts of a checkpoint that never change, oldest first."""
        return []

    def frozen(self, name: str) -> dict[str, torch.Tensor]:
        """One of those parts."""
        raise KeyError(name)

    def checkpoint(self) -> dict[str, Any]:
        """The rest of the state, as plain data."""
        optimizer = None if self.optimizer is None else self.optimizer.state_dict()
        return {"module": dict(self.state_dict()), "optimizer": optimizer}

    def load_checkpoint(self, state: dict[str, Any], frozen: Iterable[Weights]) -> None:
        """Takes over ``checkpoint()`` and the frozen parts, in the order of their names."""
        self.load_state_dict(state["module"])
        if self.optimizer is not None:
            self.optimizer.load_state_dict(state["optimizer"])
