"""One iteration's steps, in order: on-policy experience."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from staq.experience.accumulated_logits import Accumulate
from staq.experience.states import States
from staq.experience.transitions import StepMasks, as_tensor, at, is_truncated
from staq.networks.chunks import chunks

if TYPE_CHECKING:
    from staq.actions import Factors
    from staq.networks.architecture import Architecture
    from staq.policies import StaQPolicy
    from staq.policy_improvement.improvement import LogitsChange, PolicyImprovement

WATCHED = 256
"""States on which the policy's movement is measured, which costs two networks each."""


class Rollout:
    """T steps of N environments under π_k, each with the accumulated logits c_k of its state, known from acting.

    What follows a step is the state of the next one, but where an episode was truncated and after the last step: only
    there a next state is stored by itself. The first step after an evaluation begins a new rollout.

    :param n_steps: T, for which there is room at first
    :param generator: draws minibatches
    """

    _per_step = ("observations", "accumulated", "q", "actions", "rewards", "terminated", "cut", "fresh", "masks")
    masks: torch.Tensor | None = None
    """Which actions are allowed in each state, if not all are. [T, N, A]"""

    def __init__(
        self, n_steps: int, n_envs: int, architecture: Architecture, n_epochs: int, generator: torch.Generator
    ) -> None:
        self.n_envs, self.architecture, self.n_epochs, self.generator = n_envs, architecture, n_epochs, generator
        self.device = generator.device
        self.capacity, self.length = n_steps, 0
        self.used = False
        """Whether q_k has been learned from it."""
        self.has_q = True
        """Whether ``q`` holds that of the critics that were pushed last, for every step."""
        self.observations: torch.Tensor | None = None  # of a type that the first one tells

    def _allocate(self, obs: torch.Tensor, factors: Factors, masked: bool) -> None:
        shape, device = (self.capacity, self.n_envs), self.device
        self.observations = torch.empty(*shape, *obs.shape[1:], dtype=obs.dtype, device=device)
        self.accumulated = torch.empty(*shape, factors.n_outputs, dtype=torch.float64, device=device)
        indices = shape if factors.single else (*shape, len(factors.sizes))
        self.q = torch.empty(*shape, factors.n_outputs, device=device)
        self.actions = torch.empty(indices, dtype=torch.long, device=device)
        self.rewards = torch.empty(shape, device=device)
        self.terminated, self.cut, self.fresh = (torch.empty(shape, dtype=torch.bool, device=device) for _ in range(3))
        self.masks = torch.empty_like(self.accumulated, dtype=torch.bool) if masked else None
        self._begin()

    def _begin(self) -> None:
        self.length, self.used, self.has_q = 0, False, True
        # Rows that were cut, what followed, and what is allowed there.
        self._next: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]] = []

    # ------------------------------------------------------------------ while collecting

    def see(self, obs: torch.Tensor, improvement: PolicyImprovement) -> torch.Tensor:
        """Accumulates the logits of the states that the policy acts on now, and q where it comes with them. → [N, A]"""
        self._acting_on, self._q = improvement.accumulated_and_q(obs)
        return self._acting_on

    def add(
        self,
        obs: Any,
        next_obs: Any,
        action: Any,
        reward: np.ndarray,
        done: np.ndarray,
        infos: list[dict[str, Any]],
        fresh: torch.Tensor,
        masks: StepMasks | None = None,
    ) -> None:
        """Stores a step of every environment.

        :param fresh: whether each action was drawn now, rather than held from an earlier step
        """
        obs, next_obs, done = as_tensor(obs, self.device), as_tensor(next_obs, self.device), np.asarray(done)
        same = self.observations is not None and self.observations.dtype == obs.dtype
        if not same or (self.masks is None) != (masks is None):
            self._allocate(obs, self.architecture.factors, masked=masks is not None)
        elif self.used:
            self._begin()
        elif self.length == self.capacity:
            self._make_room()
        t, truncated = self.length, is_truncated(infos) & done
        assert self.observations is not None
        self.observations[t], self.accumulated[t], self.fresh[t] = obs, self._acting_on, fresh
        self.has_q = self.has_q and self._q is not None
        if self._q is not None:
            self.q[t] = self._q
        self.actions[t], self.rewards[t] = as_tensor(action, self.device), as_tensor(reward, self.device)
        self.terminated[t], self.cut[t] = as_tensor(done & ~truncated, self.device), as_tensor(done, self.device)
        next_masks = None if masks is None else masks.next
        if self.masks is not None and masks is not None:
            self.masks[t] = masks.now
        if truncated.any():
            self._cut(t, np.flatnonzero(truncated), next_obs, next_masks)
        self._last = next_obs, next_masks, done
        self.length += 1

    def _cut(self, t: int, envs: np.ndarray, next_obs: torch.Tensor, next_masks: torch.Tensor | None) -> None:
        which = torch.as_tensor(envs, device=self.device)
        self._next.append((t * self.n_envs + which, next_obs[which], at(next_masks, which)))

    def _make_room(self) -> None:
        """For an interval that was raised since."""
        stored = {name: value for name, value in vars(self).items() if name in self._per_step and value is not None}
        self.capacity *= 2
        for name, old in stored.items():
            new = torch.empty(self.capacity, *old.shape[1:], dtype=old.dtype, device=self.device)
            new[: len(old)] = old
            setattr(self, name, new)

    def end_episodes(self) -> None:
        """Cuts the episodes that go on: the environments are reset, or the rollout ends."""
        if self.length == 0 or self.used:
            return
        next_obs, next_masks, done = self._last
        continuing, t = np.flatnonzero(~done), self.length - 1
        if len(continuing) and not self.cut[t, continuing[0]]:
            self._cut(t, continuing, next_obs, next_masks)
            self.cut[t] = True

    def complete(self, accumulate: Accumulate) -> None:
        """Evaluates the next states that nobody acted on: here the rollout ends, or was cut."""
        self.end_episodes()
        next_obs, next_masks, _ = self._last
        rows = [rows for rows, _, _ in self._next]
        self.next_rows = torch.cat(rows) if rows else torch.empty(0, dtype=torch.long, device=self.device)
        """Which steps were cut without an end, [K], as rows of [T · N]; and what followed."""
        self.next_observations = torch.cat([obs for _, obs, _ in self._next]) if rows else next_obs[:0]
        masks = [masks for _, _, masks in self._next if masks is not None]
        self.next_masks = torch.cat(masks) if masks else at(next_masks, slice(0))
        """Which actions are allowed there, if not all are. [K, A]"""
        self.next_accumulated = accumulate(self.next_observations)
        watched = slice(None, None, -(-len(self) // WATCHED))
        self._watched = self.flat("observations")[watched], self.flat("accumulated")[watched].clone()
        self._watched_masks = at(self.flat_masks, watched)

    # ------------------------------------------------------------------ while learning

    def __len__(self) -> int:
        return self.length * self.n_envs

    def flat(self, name: str) -> torch.Tensor:
        """[T · N, ...]"""
        values: torch.Tensor = getattr(self, name)
        return values[: self.length].flatten(0, 1)

    @property
    def flat_masks(self) -> torch.Tensor | None:
        """[T · N, A], if not everything is allowed."""
        return None if self.masks is None else self.flat("masks")

    def minibatches(self, n_epochs: int, batch_size: int) -> torch.Tensor:
        """Rows of minibatches, of which every pass has each step once; the last is filled up with steps of its pass.

        → [n, B]
        """
        n = -(-len(self) // batch_size) * batch_size
        passes = [torch.randperm(len(self), generator=self.generator, device=self.device) for _ in range(n_epochs)]
        return torch.cat([torch.cat([rows, rows[: n - len(self)]]) for rows in passes]).view(-1, batch_size)

    def states(self, policy: StaQPolicy, batch_size: int) -> States:
        """Every state, for a policy improvement."""
        obs, masks = self.flat("observations"), self.flat_masks

        def draw(n: int | None) -> torch.Tensor:
            per_pass = -(-len(self) // batch_size)
            return self.minibatches(self.n_epochs if n is None else -(-n // per_pass), batch_size)[:n]

        return States(
            obs,
            partial(policy.mean_q, obs),
            lambda rows: policy.log_policy(self.flat("accumulated")[rows], at(masks, rows)),
            draw,
            masks,
            max_watched=WATCHED,
        )

    def current_accumulated(self) -> torch.Tensor:
        """c_k of some of the states: those on which the policy's movement is measured. [n, A]"""
        return self._watched[1]

    def current_masks(self) -> torch.Tensor | None:
        """Which actions are allowed in them, if not all are. [n, A]"""
        return self._watched_masks

    def follow(self, change: LogitsChange | None, accumulate: Accumulate) -> None:
        """Follows a policy update on the watched states; the rest of the rollout is over."""
        obs, accumulated = self._watched
        new = accumulate(obs) if change is None else change.applied(accumulated, obs, self.architecture)
        self._watched = obs, new

    def recompute(self, accumulate: Accumulate) -> None:
        """Evaluates every state anew: the policy is another one."""
        if self.length and not self.used:
            flat, obs = self.flat("accumulated"), self.flat("observations")
            for rows in chunks(len(self), self.device):
                flat[rows] = accumulate(obs[rows])
            self.has_q = False

    # ------------------------------------------------------------------ files

    def checkpoint(self) -> dict[str, Any]:
        """Nothing: between two iterations a rollout is used up."""
        return {}

    def load_checkpoint(self, state: dict[str, Any]) -> None:
        self.used = True
