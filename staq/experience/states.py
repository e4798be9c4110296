"""Visited states, as a policy improvement receives them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import torch

from staq.experience.transitions import at

Rows = slice | torch.Tensor


class States:
    """Visited states with q_k and log π_k of each, whatever experience they come from.

    Both are computed when first asked for, since a push onto a stack needs neither: ask before you change the policy.

    :param obs: the states, as observed [n, ...]
    :param compute_q: → q_k, the mean of the critics [n, A]
    :param compute_log_pi: rows → log π_k of their states, float64 [n, A]
    :param draw: how many minibatches, None for what the experience is good for → their rows [n, B]
    :param masks: which actions are allowed in each, if not all are [n, A]
    :param max_watched: on how many of them a policy's movement is measured; None for all
    """

    def __init__(
        self,
        obs: torch.Tensor,
        compute_q: Callable[[], torch.Tensor],
        compute_log_pi: Callable[[Rows], torch.Tensor],
        draw: Callable[[int | None], torch.Tensor],
        masks: torch.Tensor | None = None,
        max_watched: int | None = None,
    ) -> None:
        self.obs, self.masks = obs, masks
        self.watched = self.some(max_watched)
        self._compute_q, self._compute_log_pi, self._draw = compute_q, compute_log_pi, draw

    def __len__(self) -> int:
        return len(self.obs)

    def some(self, most: int | None) -> slice:
        """Rows of about so many states, evenly spread over all."""
        return slice(None, None, 1 if most is None else max(1, -(-len(self) // most)))

    def masks_at(self, rows: Rows) -> torch.Tensor | None:
        """Which actions are allowed in some of the states, if not all are. → [len(rows), A]"""
        return at(self.masks, rows)

    @cached_property
    def q(self) -> torch.Tensor:
        """q_k(s), the mean of the critics. [n, A]"""
        with torch.no_grad():
            return self._compute_q()

    @cached_property
    def log_pi(self) -> torch.Tensor:
        """log π_k(·|s). [n, A]"""
        return self.log_pi_at(slice(None)).float()

    def log_pi_at(self, rows: Rows) -> torch.Tensor:
        """log π_k of some of the states, in full precision. → float64 [len(rows), A]"""
        with torch.no_grad():
            return self._compute_log_pi(rows)

    def minibatches(self, n: int | None) -> torch.Tensor:
        """Rows of n minibatches, or of as many as the experience is good for, drawn by the run's generator. → [n, B]"""
        return self._draw(n)
