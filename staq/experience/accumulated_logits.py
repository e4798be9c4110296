"""The one owner of accumulated logits."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from staq.networks.chunks import chunks

if TYPE_CHECKING:
    from staq.networks.architecture import Architecture
    from staq.policy_improvement.improvement import LogitsChange

Accumulate = Callable[[torch.Tensor], torch.Tensor]
"""Observations → their accumulated logits under the current policy, ``PolicyImprovement.accumulated``."""


class AccumulatedLogits:
    """c_k of the next state of every stored transition, kept current while the policy changes.

    Invariant: for every stored row i, ``values[i]`` = c_k(next_obs[i]) of the current policy (up to merges made since
    the row was stored), or ``pending[i]``. Nothing else writes either. A policy update costs two networks per row
    however many the policy consists of (``follow``), and what was acted on costs nothing (``store``).
    """

    def __init__(self, n_rows: int, n_outputs: int, device: torch.device) -> None:
        # float64: sums of thousands, of which the policy sees differences of one
        self.values = torch.zeros(n_rows, n_outputs, dtype=torch.float64, device=device)
        self.pending = torch.zeros(n_rows, dtype=torch.bool, device=device)

    def expect(self, rows: torch.Tensor) -> None:
        """Marks rows whose next state the policy has not evaluated yet."""
        self.pending[rows] = True

    def store(self, rows: torch.Tensor, accumulated: torch.Tensor) -> None:
        """Files what the policy accumulated for the next states of ``rows``, as it does to act."""
        self.values[rows] = accumulated
        self.pending[rows] = False

    def complete(self, accumulate: Accumulate, next_observations: torch.Tensor) -> None:
        """Evaluates next states that nobody acted on: an episode's last one, and those after the last step."""
        rows = self.pending.nonzero().squeeze(-1)
        if len(rows):
            self.store(rows, accumulate(next_observations[rows]))

    @torch.no_grad()
    def follow(self, change: LogitsChange, next_observations: torch.Tensor, architecture: Architecture) -> None:
        """Follows a policy update for the stored rows, which are as many as ``next_observations``."""
        for rows in chunks(len(next_observations), self.values.device):
            self.values[rows] = change.applied(self.values[rows], next_observations[rows], architecture)

    def recompute(self, accumulate: Accumulate, next_observations: torch.Tensor) -> None:
        """Follows a change of any kind: another policy was loaded, or one that no ``LogitsChange`` describes."""
        for rows in chunks(len(next_observations), self.values.device):
            self.values[rows] = accumulate(next_observations[rows])
        self.pending[: len(next_observations)] = False

    def load(self, values: torch.Tensor) -> None:
        """Takes over the values of a checkpoint, whose rows are complete."""
        self.values[: len(values)] = values.to(self.values.device)
        self.pending[:] = False

    def to(self, device: torch.device) -> None:
        self.values, self.pending = self.values.to(device), self.pending.to(device)
