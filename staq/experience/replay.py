"""The last transitions, each with the accumulated logits of its next state."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import BaseBuffer, ReplayBuffer
from stable_baselines3.common.type_aliases import ReplayBufferSamples

from staq.experience.accumulated_logits import Accumulate, AccumulatedLogits
from staq.experience.states import States
from staq.experience.transitions import StepMasks, as_tensor, at, is_truncated
from staq.networks.architecture import Architecture

if TYPE_CHECKING:
    from staq.policies import StaQPolicy
    from staq.policy_improvement.improvement import LogitsChange, PolicyImprovement


class Replay(ReplayBuffer):
    """A ring of single transitions on the training device, in the environment's own types.

    Unlike SB3's buffer it draws from its own generator, fills up to exactly ``buffer_size`` for any number of
    environments, and keeps ``terminated`` apart from ``truncated``. Observations are stored as the policy saw
    them: under VecNormalize that is normalised, by the statistics of their time. Beside them are the accumulated
    logits of the next states.
    """

    masks: torch.Tensor | None = None
    """Which actions are allowed in each state, and in the next one, once any are forbidden. [n, A]"""
    next_masks: torch.Tensor | None = None

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        architecture: Architecture,
        generator: torch.Generator,
        n_envs: int = 1,
    ) -> None:
        # Not ReplayBuffer's: it allocates arrays of another layout.
        BaseBuffer.__init__(self, buffer_size, observation_space, action_space, generator.device, n_envs)
        self.generator = generator
        self.architecture = architecture
        self.observations: Any
        self.next_observations: Any
        factors = architecture.factors
        self._allocate_observations(self.to_torch(np.zeros((), dtype=observation_space.dtype)).dtype)
        indices = (buffer_size,) if factors.single else (buffer_size, len(factors.sizes))
        self.actions: Any = torch.zeros(indices, dtype=torch.long, device=self.device)
        self.rewards: Any = torch.zeros(buffer_size, device=self.device)
        self.terminated = torch.zeros(buffer_size, dtype=torch.bool, device=self.device)
        self.accumulated = AccumulatedLogits(buffer_size, factors.n_outputs, generator.device)
        self._forget_last_step(n_envs)

    @property
    def transition(self) -> tuple[str, ...]:
        """What is written once per transition, and never changes."""
        always = ("observations", "next_observations", "actions", "rewards", "terminated")
        return always if self.masks is None else (*always, "masks", "next_masks")

    # ------------------------------------------------------------------ while collecting

    def see(self, obs: torch.Tensor, improvement: PolicyImprovement) -> torch.Tensor:
        """Accumulates the logits of the states that the policy acts on now: the next states of the last step. → [N, A]

        Where an episode has ended they are not, and that row stays pending.
        """
        accumulated = improvement.accumulated(obs)
        known = self._continuing & self.accumulated.pending[self.last_rows]
        self.accumulated.store(self.last_rows[known], accumulated[known])
        return accumulated

    def add(
        self,
        obs: Any,
        next_obs: Any,
        action: Any,
        reward: np.ndarray,
        done: np.ndarray,
        infos: list[dict[str, Any]],
        fresh: torch.Tensor | None = None,
        masks: StepMasks | None = None,
    ) -> None:
        """Stores a transition per environment.

        :param action: indices
        :param fresh: whether actions were drawn now, rather than held: targets of single steps need not know
        """
        n, obs, next_obs = len(reward), self.to_torch(obs), self.to_torch(next_obs)
        if self.size() == 0 and obs.dtype != self.observations.dtype:
            self._allocate_observations(obs.dtype)  # VecNormalize returns floats whatever its space says
        truncated = is_truncated(infos)
        rows = (self.pos + torch.arange(n, device=self.device)) % self.buffer_size
        self.observations[rows] = obs.reshape(n, *self.obs_shape)
        self.next_observations[rows] = next_obs.reshape(n, *self.obs_shape)
        self.actions[rows] = self.to_torch(action).long().reshape(n, *self.actions.shape[1:])
        self.rewards[rows] = self.to_torch(reward).float()
        self.terminated[rows] = self.to_torch(done & ~truncated)
        if masks is not None:
            self.allocate_masks()
            assert self.masks is not None
            assert self.next_masks is not None
            self.masks[rows], self.next_masks[rows] = masks
        elif self.masks is not None and self.next_masks is not None:
            self.masks[rows] = self.next_masks[rows] = True  # everything is allowed where nobody says otherwise
        self.accumulated.expect(rows)
        self.last_rows, self._continuing = rows, self.to_torch(~done)
        self.full = self.full or self.pos + n >= self.buffer_size
        self.pos = (self.pos + n) % self.buffer_size

    def extend(self, *columns: Any) -> None:
        """SB3's, for transitions from elsewhere: columns of what ``add`` takes, a row of one environment or of several.

        Nobody acts on the last next states.
        """
        for obs, next_obs, action, reward, done, infos in zip(*columns, strict=True):
            self.add(obs, next_obs, action, np.atleast_1d(reward), np.atleast_1d(done).astype(bool), infos)
        self.end_episodes()

    def end_episodes(self) -> None:
        """Cuts the episodes that go on, since the environments are reset: nobody acts on the last next states."""
        self._forget_last_step(self.n_envs)

    def complete(self, accumulate: Accumulate) -> None:
        """Evaluates the next states that nobody acted on."""
        self.accumulated.complete(accumulate, self.next_observations)

    # ------------------------------------------------------------------ while learning

    def __len__(self) -> int:
        return int(self.size())

    def draw(self, n_batches: int, batch_size: int) -> torch.Tensor:
        """Rows of uniformly drawn transitions, with replacement. → [n_batches, batch_size]"""
        shape = (n_batches, batch_size)
        return torch.randint(self.size(), shape, generator=self.generator, device=self.device)

    def states(self, policy: StaQPolicy, batch_size: int) -> States:
        """Every stored state, for a policy improvement."""
        stored = slice(self.size())
        obs, masks = self.observations[stored], at(self.masks, stored)
        return States(
            obs,
            partial(policy.mean_q, obs),
            lambda rows: policy.log_policy(policy.improvement.accumulated(obs[rows]), at(masks, rows)),
            lambda n: self.draw(-(-self.size() // batch_size) if n is None else n, batch_size),
            masks,
        )

    def current_accumulated(self) -> torch.Tensor:
        """c_k of every stored next state: the states on which the policy's movement is measured. [n, A]"""
        return self.accumulated.values[: self.size()]

    def current_masks(self) -> torch.Tensor | None:
        """Which actions are allowed in them, if not all are. [n, A]"""
        return at(self.next_masks, slice(self.size()))

    def follow(self, change: LogitsChange | None, accumulate: Accumulate) -> None:
        """Follows a policy update; one that no change describes costs a full evaluation."""
        if change is None:
            self.recompute(accumulate)
        else:
            self.accumulated.follow(change, self.next_observations[: self.size()], self.architecture)

    def recompute(self, accumulate: Accumulate) -> None:
        """Evaluates every stored next state anew: the policy is another one."""
        self.accumulated.recompute(accumulate, self.next_observations[: self.size()])

    def sample(self, batch_size: int, env: Any = None) -> ReplayBufferSamples:
        """A batch as SB3's buffers give it."""
        rows = self.draw(1, batch_size)[0]
        return ReplayBufferSamples(
            self.observations[rows],
            self.actions[rows].view(batch_size, -1),
            self.next_observations[rows],
            self.terminated[rows].float().unsqueeze(-1),
            self.rewards[rows].unsqueeze(-1),
        )

    @property
    def dones(self) -> Any:  # type: ignore[override]
        """SB3's name for the ends that targets see: an episode cut by a limit of time is stored as one that goes on."""
        return self.terminated

    @property
    def timeouts(self) -> Any:  # type: ignore[override]
        """SB3's name for which of the ``dones`` are limits of time: none."""
        return torch.zeros_like(self.terminated)

    def to_torch(self, array: Any, copy: bool = True) -> torch.Tensor:
        return as_tensor(array, self.device)

    def allocate_masks(self) -> None:
        """Makes room for masks, if there is none yet: in states seen before, everything was allowed."""
        if self.masks is None:
            shape = self.buffer_size, self.architecture.factors.n_outputs
            self.masks, self.next_masks = (torch.ones(shape, dtype=torch.bool, device=self.device) for _ in range(2))

    def _allocate_observations(self, dtype: torch.dtype) -> None:
        shape = (self.buffer_size, *self.obs_shape)
        self.observations = torch.zeros(shape, dtype=dtype, device=self.device)
        self.next_observations = torch.zeros(shape, dtype=dtype, device=self.device)

    # ------------------------------------------------------------------ files

    def checkpoint(self) -> dict[str, Any]:
        """What is beside the transitions, which are saved as they come."""
        return {"accumulated": self.current_accumulated().clone()}

    def load_checkpoint(self, state: dict[str, Any]) -> None:
        """Takes it over, once the transitions are there."""
        self.accumulated.load(state["accumulated"])

    def newest(self, n: int) -> dict[str, torch.Tensor]:
        """The last n transitions, oldest first."""
        rows = (self.pos - n + torch.arange(n, device=self.device)) % self.buffer_size
        return {name: getattr(self, name)[rows] for name in self.transition}

    def put(self, rows: dict[str, torch.Tensor], next_row: int) -> None:
        """Replaces everything stored by other transitions, oldest first, the last of them before ``next_row``."""
        n = len(rows["rewards"])
        self.pos, self.full = next_row, n == self.buffer_size
        where = (next_row - n + torch.arange(n, device=self.device)) % self.buffer_size
        self._allocate_observations(rows["observations"].dtype)
        self.masks = self.next_masks = None
        if "masks" in rows:
            self.allocate_masks()
        for name in self.transition:
            getattr(self, name)[where] = rows[name].to(self.device)
        self._forget_last_step(self.n_envs)

    def _forget_last_step(self, n_envs: int) -> None:
        self.last_rows = torch.zeros(n_envs, dtype=torch.long, device=self.device)
        self._continuing = torch.zeros(n_envs, dtype=torch.bool, device=self.device)
