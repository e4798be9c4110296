"""The last transitions, each with the accumulated logits of its next state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import BaseBuffer, ReplayBuffer
from stable_baselines3.common.type_aliases import ReplayBufferSamples

from staq.actions import Factors

# Rows per pass over the whole replay: large enough for full speed, small enough for the cache.
PIECE = 256


class Replay(ReplayBuffer):
    """A ring of single transitions on the training device, in the environment's own types.

    Unlike SB3's buffer it draws from its own generator, fills up to exactly ``buffer_size`` for any number of
    environments, and keeps ``terminated`` apart from ``truncated``. Observations are kept as the policy saw
    them: under VecNormalize that is normalised, by the statistics of their time. Beside them is what the networks
    want of them, where that is something else.

    :param kept: what the networks want of observations, ``Architecture.kept``
    """

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        factors: Factors,
        generator: torch.Generator,
        n_envs: int = 1,
        kept: Callable[[torch.Tensor], torch.Tensor] = lambda obs: obs,
    ) -> None:
        BaseBuffer.__init__(self, buffer_size, observation_space, action_space, generator.device, n_envs)
        self.generator = generator
        self.make_kept = kept
        self.observations: Any
        self.next_observations: Any
        self._allocate_observations(self.to_torch(np.zeros((), dtype=observation_space.dtype)).dtype)
        choices = (buffer_size,) if factors.single else (buffer_size, len(factors.sizes))
        self.actions: Any = torch.zeros(choices, dtype=torch.long, device=self.device)
        self.rewards: Any = torch.zeros(buffer_size, device=self.device)
        self.terminated = torch.zeros(buffer_size, dtype=torch.bool, device=self.device)
        # float64: sums of thousands, of which the policy sees differences of one (c of the cost model)
        self.accumulated = torch.zeros(buffer_size, factors.n_outputs, dtype=torch.float64, device=self.device)
        # Rows whose next state has not been evaluated by the policy yet.
        self.pending = torch.zeros(buffer_size, dtype=torch.bool, device=self.device)
        self.last_rows = torch.zeros(n_envs, dtype=torch.long, device=self.device)

    def add(
        self,
        obs: Any,
        next_obs: Any,
        action: Any,
        reward: np.ndarray,
        done: np.ndarray,
        infos: list[dict[str, Any]],
    ) -> None:
        """One transition per environment. ``action`` is choices; SB3's infos tell truncation from termination."""
        n, obs, next_obs = len(reward), self.to_torch(obs), self.to_torch(next_obs)
        if self.size() == 0 and obs.dtype != self.observations.dtype:
            self._allocate_observations(obs.dtype)  # VecNormalize returns floats whatever its space says
        truncated = np.array([info.get("TimeLimit.truncated", False) for info in infos])
        rows = (self.pos + torch.arange(n, device=self.device)) % self.buffer_size
        self.observations[rows] = obs = obs.reshape(n, *self.obs_shape)
        self.next_observations[rows] = next_obs = next_obs.reshape(n, *self.obs_shape)
        if self.kept is not self.observations:
            self.kept[rows], self.next_kept[rows] = self.make_kept(obs), self.make_kept(next_obs)
        self.actions[rows] = self.to_torch(action).long()
        self.rewards[rows] = self.to_torch(reward).float()
        self.terminated[rows] = self.to_torch(done & ~truncated)
        self.pending[rows] = True
        self.last_rows = rows
        self.full = self.full or self.pos + n >= self.buffer_size
        self.pos = (self.pos + n) % self.buffer_size

    def set_accumulated(self, rows: torch.Tensor, accumulated: torch.Tensor) -> None:
        """Files what the policy accumulated for the next states of ``rows``."""
        self.accumulated[rows] = accumulated
        self.pending[rows] = False

    def pending_rows(self) -> torch.Tensor:
        return self.pending.nonzero().squeeze(-1)

    def filled_rows(self) -> Iterator[slice]:
        """All stored rows, in pieces."""
        size = self.size()
        return (slice(start, min(start + PIECE, size)) for start in range(0, size, PIECE))

    def draw(self, n_batches: int, batch_size: int) -> torch.Tensor:
        """Rows of uniformly drawn transitions, with replacement. → [n_batches, batch_size]"""
        shape = (n_batches, batch_size)
        return torch.randint(self.size(), shape, generator=self.generator, device=self.device)

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

    def to_torch(self, array: Any, copy: bool = True) -> torch.Tensor:
        array = np.asarray(array)
        if array.dtype in (np.uint16, np.uint32, np.uint64):  # torch stores these and can do little with them
            array = array.astype(np.int64)
        return torch.as_tensor(array, device=self.device)

    def _allocate_observations(self, dtype: torch.dtype) -> None:
        shape = (self.buffer_size, *self.obs_shape)
        self.observations = torch.zeros(shape, dtype=dtype, device=self.device)
        self.next_observations = torch.zeros(shape, dtype=dtype, device=self.device)
        self.remake_kept()

    def remake_kept(self) -> None:
        """Follows observations that were not added one by one."""
        one = self.observations[:1]
        of_one = self.make_kept(one)
        if of_one is one:
            self.kept, self.next_kept = self.observations, self.next_observations
            return
        shape = (self.buffer_size, *of_one.shape[1:])
        self.kept, self.next_kept = (of_one.new_zeros(shape) for _ in range(2))
        for rows in self.filled_rows():
            self.kept[rows] = self.make_kept(self.observations[rows])
            self.next_kept[rows] = self.make_kept(self.next_observations[rows])

    TRANSITION = ("observations", "next_observations", "actions", "rewards", "terminated")
    """What is written once per transition, and never changes."""

    def newest(self, n: int) -> dict[str, torch.Tensor]:
        """The last n transitions, oldest first."""
        rows = (self.pos - n + torch.arange(n, device=self.device)) % self.buffer_size
        return {name: getattr(self, name)[rows] for name in self.TRANSITION}

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("make_kept", "kept", "next_kept")}

    def adopt(self, generator: torch.Generator, n_envs: int, kept: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Makes an unpickled replay draw from the given generator, on its device, for so many environments."""
        self.generator, self.device, self.n_envs = generator, generator.device, n_envs
        for name, value in self.__dict__.items():
            if isinstance(value, torch.Tensor):
                setattr(self, name, value.to(self.device))
        self.pending[:] = False
        self.last_rows = torch.zeros(n_envs, dtype=torch.long, device=self.device)
        self.make_kept = kept
        self.remake_kept()
