"""What the loop asks of a policy update."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from staq.mirror_descent import StepSize
from staq.q_networks import QEnsemble, Weights

if TYPE_CHECKING:
    from staq.replay import Replay


class PolicyUpdate(nn.Module, ABC):
    """A policy π ∝ exp(ξ) that can be evaluated, and improved once per iteration.

    The policy's logits come in two steps, ``logits(accumulated(obs))``: what is accumulated over the past is
    costly and is kept with each replayed transition, what turns it into logits is not.
    """

    optimizer: torch.optim.Optimizer | None = None
    """Of an update that optimises something."""

    @abstractmethod
    def accumulated(self, obs: torch.Tensor) -> torch.Tensor:
        """The part of the logits that the replay keeps, float64 [B, A]."""

    @abstractmethod
    def logits(self, accumulated: torch.Tensor) -> torch.Tensor:
        """ξ of the current policy. [B, A] → [B, A]"""

    @abstractmethod
    def begin_iteration(self, step_size: StepSize) -> None:
        """Makes the policy that of an iteration with the given entropy weight."""

    @abstractmethod
    def improve(self, q_net: QEnsemble, replay: Replay, step_size: StepSize) -> None:
        """π_k → π_{k+1} from q_k, with the replay's accumulated logits brought up to date."""

    @abstractmethod
    def as_stack(self) -> dict[str, Any]:
        """The policy as a stack of networks, in ``QStack``'s format: what an export carries."""

    @abstractmethod
    def frozen_q_values(self, obs: torch.Tensor) -> torch.Tensor:
        """q of every frozen ensemble that the policy consists of, oldest first. → [n, E, A, B]"""

    @abstractmethod
    def frozen_names(self) -> list[str]:
        """File names of the parts of a checkpoint that never change, oldest first."""

    @abstractmethod
    def frozen(self, name: str) -> dict[str, torch.Tensor]:
        """One of those parts."""

    @abstractmethod
    def checkpoint(self) -> dict[str, Any]:
        """The rest of the update's state, as plain data."""

    @abstractmethod
    def load_checkpoint(self, state: dict[str, Any], frozen: Iterable[Weights]) -> None:
        """Takes over ``checkpoint()`` and the frozen parts, in the order of their names."""

    @abstractmethod
    def diagnostics(self) -> dict[str, float]:
        """What is worth logging of the policy itself, under ``staq/``."""
