"""Everything that a training consists of, as data: of our loop, and of stable-baselines3's models."""

from __future__ import annotations

import random
import re
import warnings
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from staq.experience.replay import Replay
from staq.experience.transitions import copied
from staq.hyperparameters import settings_of
from staq.loop import PolicyMirrorDescent
from staq.storage.atomic_files import read
from staq.storage.environment_snapshot import CannotRestore, restore, snapshot, why_not_exactly
from staq.storage.plain_data import DamagedFile

SB3_TRANSITION = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")
Segments = list[tuple[str, int]]
"""Files of replayed rows and their lengths, oldest first."""


def training_state(model: BaseAlgorithm) -> TrainingState:
    """How a model's training is saved."""
    return LoopState(model) if isinstance(model, PolicyMirrorDescent) else SB3State(model)


class TrainingState(ABC):
    """A training between two iterations (of SB3's models, between two rollouts)."""

    counters: tuple[str, ...]
    """Attributes of the model that are saved as they are."""

    def __init__(self, model: Any) -> None:
        self.model = model

    @property
    @abstractmethod
    def progress(self) -> int:
        """How far it is: files are numbered by it."""

    @property
    @abstractmethod
    def at_boundary(self) -> bool:
        """Whether a rollout that begins now begins an iteration."""

    @property
    @abstractmethod
    def ended_whole(self) -> bool:
        """Whether ``learn`` ended at a boundary, rather than stopped in mid-iteration."""

    seconds_per_checkpoint = 0.0
    """Time between two checkpoints, where an iteration is shorter."""

    @property
    def run_id(self) -> str:
        """By which a folder of checkpoints is known to be this run's."""
        return ""

    def on_step(self, of_loop: dict[str, Any]) -> None:
        """Called after every step of the environments."""

    def frozen(self) -> dict[str, Callable[[], dict[str, torch.Tensor]]]:
        """Parts that never change once they are there, by file name."""
        return {}

    def identity(self) -> dict[str, Any]:
        """What a continued run depends on; code, such as a schedule, only by its name."""
        model = self.model
        return {"algorithm": type(model).__name__, "n_envs": model.n_envs, "device": model.device.type}

    def capture(self, segments: Segments, with_env: bool) -> dict[str, Any]:
        """All but the frozen parts and the replayed transitions, as plain data."""
        model, buffer = self.model, self.replay
        replay = {} if buffer is None else {"pos": buffer.pos, "full": buffer.full}
        normalize = model.get_vec_normalize_env()
        return {
            "run": self.run_id,
            "progress": self.progress,
            "identity": self.identity(),
            "num_timesteps": model.num_timesteps,
            "episodes_ended": model._episode_num,
            "counters": {name: getattr(model, name) for name in self.counters if hasattr(model, name)},
            "frozen": list(self.frozen()),
            "replay": replay | {"segments": [list(segment) for segment in segments]},
            "episodes": snapshot(list(model.ep_info_buffer)) or [],
            "successes": snapshot(list(model.ep_success_buffer)) or [],
            "last_obs": copied(model._last_obs),
            "env": snapshot(model.env) if with_env else None,
            # Statistics of a VecNormalize do not depend on what its environments are doing.
            "normalization": None if normalize is None else [snapshot(normalize.obs_rms), snapshot(normalize.ret_rms)],
            "learned": self.learned(),
        }

    def restore(self, state: dict[str, Any], folder: Path) -> None:
        """Puts the model where the state was captured; files that it names lie in ``folder``."""
        model = self.model
        for name, value in state["counters"].items():
            setattr(model, name, value)
        self.restore_learned(state["learned"], (read(folder / name) for name in state["frozen"]))
        if self.replay is not None:
            restore_replay(self.replay, state["replay"], folder)
        self.complete(state["learned"])
        model.ep_info_buffer = deque(state["episodes"], maxlen=model._stats_window_size)
        model.ep_success_buffer = deque(state["successes"], maxlen=model._stats_window_size)
        if model.env is not None:
            self._restore_environment(state)
        self.restore_random(state["learned"])

    def _restore_environment(self, state: dict[str, Any]) -> None:
        model, env = self.model, self.model.env
        env.reset()  # some parts of an environment are made at its first reset
        try:
            if state["env"] is None:
                raise CannotRestore(
                    why_not_exactly(env) or "the checkpoint was written where they could not be restored"
                )
            restore(env, state["env"])
            model._last_obs = state["last_obs"]
            return
        except CannotRestore as reason:
            normalize = model.get_vec_normalize_env()
            if normalize is not None and state["normalization"] is not None:
                for statistics, saved in zip(
                    (normalize.obs_rms, normalize.ret_rms), state["normalization"], strict=True
                ):
                    restore(statistics, saved)
            if model.seed is not None:  # the new episodes are not to be those that the run began with
                env.seed(int(np.random.SeedSequence([model.seed, self.progress]).generate_state(1)[0]))
            model._last_obs = env.reset()
            self.begin_episodes()
            warnings.warn(f"The environments begin new episodes, since {reason}; all else is as it was.", stacklevel=4)

    @property
    def replay(self) -> ReplayBuffer | None:
        return getattr(self.model, "replay_buffer", None)

    @abstractmethod
    def learned(self) -> dict[str, Any]:
        """Networks, optimisers, generators."""

    @abstractmethod
    def restore_learned(self, learned: dict[str, Any], frozen: Iterator[dict[str, torch.Tensor]]) -> None:
        """Takes them over."""

    def complete(self, learned: dict[str, Any]) -> None:
        """What must come after the replay's transitions."""

    def restore_random(self, learned: dict[str, Any]) -> None:
        """What must come last, since resetting environments may draw."""

    @abstractmethod
    def begin_episodes(self) -> None:
        """Forgets what belonged to the episodes that were cut."""


class LoopState(TrainingState):
    """Of our loop, between two iterations."""

    model: PolicyMirrorDescent
    counters = ("num_timesteps", "steps_collected", "iteration", "_episode_num", "_n_updates", "_total_timesteps")

    @property
    def progress(self) -> int:
        return self.model.iteration

    @property
    def at_boundary(self) -> bool:
        return self.model.at_boundary

    ended_whole = at_boundary

    @property
    def seconds_per_checkpoint(self) -> float:  # type: ignore[override]
        return self.model.policy_evaluation.seconds_per_checkpoint

    @property
    def run_id(self) -> str:
        return self.model.run_id

    def frozen(self) -> dict[str, Callable[[], dict[str, torch.Tensor]]]:
        improvement = self.model.policy.improvement
        return {name: partial(improvement.frozen, name) for name in improvement.frozen_names()}

    def identity(self) -> dict[str, Any]:
        model, rate = self.model, self.model.learning_rate
        names = settings_of(model.groups(model.evaluation))
        return (
            super().identity()
            | {name: getattr(model, name) for name in ("evaluation", *names, "seed")}
            | {
                "learning_rate": "a schedule" if callable(rate) else float(rate),
                "policy": type(model.policy).__name__,
                "policy_kwargs": re.sub(r" at 0x[0-9a-f]+", "", repr(sorted(model.policy_kwargs.items()))),
            }
        )

    def learned(self) -> dict[str, Any]:
        model = self.model
        return {
            "q_net": model.policy.q_net.state_dict(),
            "optimizer": model.policy.optimizer.state_dict(),
            "improvement": model.policy.improvement.checkpoint(),
            "experience": model.experience.checkpoint(),
            "generators": {name: generator.get_state() for name, generator in model._generators.items()},
            "behaviour": model._behaviour.state_dict(),
        }

    def restore_learned(self, learned: dict[str, Any], frozen: Iterator[dict[str, torch.Tensor]]) -> None:
        model = self.model
        model.policy.q_net.load_state_dict(learned["q_net"])
        model.policy.optimizer.load_state_dict(learned["optimizer"])
        model.policy.improvement.load_checkpoint(learned["improvement"], frozen)
        model._begin_iteration()
        for name, generator in model._generators.items():
            generator.set_state(learned["generators"][name].cpu())
        model._behaviour.load_state_dict(learned["behaviour"])

    def complete(self, learned: dict[str, Any]) -> None:
        self.model.experience.load_checkpoint(learned["experience"])

    def begin_episodes(self) -> None:
        model = self.model
        model._behaviour.end_episodes(torch.ones(model.n_envs, dtype=torch.bool, device=model.device))


class SB3State(TrainingState):
    """Of a stable-baselines3 model, between two rollouts: as exact as its environments allow."""

    counters = ("num_timesteps", "_episode_num", "_n_updates", "_n_calls", "exploration_rate")

    @property
    def seconds_per_checkpoint(self) -> float:  # type: ignore[override]
        return getattr(self.model, "seconds_per_checkpoint", 0.0)

    @property
    def progress(self) -> int:
        return int(self.model.num_timesteps)

    @property
    def at_boundary(self) -> bool:
        return True

    @property
    def ended_whole(self) -> bool:
        return bool(self.model.num_timesteps >= self.model._total_timesteps)

    def on_step(self, of_loop: dict[str, Any]) -> None:
        if not isinstance(self.model, OffPolicyAlgorithm):  # SB3 counts episodes there only
            self.model._episode_num += int(of_loop["dones"].sum())

    def learned(self) -> dict[str, Any]:
        starts = self.model._last_episode_starts
        return {
            "parameters": self.model.get_parameters(),
            "episode_starts": None if starts is None else np.array(starts),
            "random": random_state(self.model),
        }

    def restore_learned(self, learned: dict[str, Any], frozen: Iterator[dict[str, torch.Tensor]]) -> None:
        self.model.set_parameters(learned["parameters"])
        self.model._last_episode_starts = learned["episode_starts"]

    def restore_random(self, learned: dict[str, Any]) -> None:
        set_random_state(self.model, learned["random"])

    def begin_episodes(self) -> None:
        self.model._last_episode_starts = np.ones(self.model.n_envs, dtype=bool)


def newest_rows(buffer: ReplayBuffer, n: int) -> dict[str, torch.Tensor]:
    """The last n rows of a replay, oldest first."""
    rows = (buffer.pos - n + torch.arange(n)) % buffer.buffer_size
    return {name: torch.as_tensor(getattr(buffer, name))[rows] for name in _transition(buffer)}


def rows_of(buffer: ReplayBuffer, steps: int | None) -> int:
    """In how many rows the last steps lie, or all of them: a row of SB3's has a step of every environment."""
    if steps is None:
        return int(buffer.size())
    return min(steps if isinstance(buffer, Replay) else steps // buffer.n_envs, buffer.size())


def restore_replay(buffer: ReplayBuffer, state: dict[str, Any], folder: Path) -> None:
    """Segment by segment, since two copies may be too many; a new row replaces an old one, as it did before."""
    buffer.pos, buffer.full = state["pos"], state["full"]
    stored = sum(length for _, length in state["segments"])
    if stored < buffer.size():
        raise DamagedFile(f"{folder} lacks transitions: {buffer.size()} are expected in {state['segments']}.")
    start = buffer.pos - stored
    for name, length in state["segments"]:
        segment, rows = read(folder / name), (start + torch.arange(length)) % buffer.buffer_size
        if isinstance(buffer, Replay) and "masks" in segment:
            buffer.allocate_masks()
        for part in _transition(buffer):
            whole = torch.as_tensor(getattr(buffer, part))  # shares the buffer's memory
            whole[rows] = segment[part].to(whole.device)
        start += length


def _transition(buffer: ReplayBuffer) -> tuple[str, ...]:
    return buffer.transition if isinstance(buffer, Replay) else SB3_TRANSITION


def random_state(model: BaseAlgorithm) -> dict[str, Any]:
    """Every generator that a model of SB3 draws from, as plain data."""
    kind, keys, *rest = np.random.get_state()  # noqa: NPY002
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all(),  # empty where there is none
        "numpy": [kind, torch.from_numpy(np.asarray(keys).astype(np.int64)), *rest],
        "python": random.getstate(),
        "actions": model.action_space.np_random.bit_generator.state,
    }


def set_random_state(model: BaseAlgorithm, state: dict[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    torch.cuda.set_rng_state_all(state["cuda"][: torch.cuda.device_count()])
    kind, keys, *rest = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))  # noqa: NPY002
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    model.action_space.np_random.bit_generator.state = state["actions"]
