"""Visited states, as a policy improvement receives them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import torch


class States:
    """Visited states with q_k and log π_k of each, whatever experience they come from.

    Both are computed when first asked for, since a push onto a stack needs neither: ask before you change the policy.

    :param obs: the states, as observed [n, ...]
    :param compute_q: → q_k, the mean of the critics [n, A]
    :param compute_log_pi: → log π_k [n, A]
    :param draw: how many minibatches → their rows [n, B]
    """

    def __init__(
        self,
        obs: torch.Tensor,
        compute_q: Callable[[], torch.Tensor],
        compute_log_pi: Callable[[], torch.Tensor],
        draw: Callable[[int], torch.Tensor],
    ) -> None:
        self.obs = obs
        self._compute_q, self._compute_log_pi, self._draw = compute_q, compute_log_pi, draw

    def __len__(self) -> int:
        return len(self.obs)

    @cached_property
    def q(self) -> torch.Tensor:
        """q_k(s), the mean of the critics. [n, A]"""
        with torch.no_grad():
            return self._compute_q()

    @cached_property
    def log_pi(self) -> torch.Tensor:
        """log π_k(·|s). [n, A]"""
        with torch.no_grad():
            return self._compute_log_pi()

    def minibatches(self, n: int) -> torch.Tensor:
        """Rows of n minibatches, drawn by the run's own generator. → [n, B]"""
        return self._draw(n)
