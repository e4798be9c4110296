"""Checkpoints of stable-baselines3 models: data only, incremental, as exact as their environments allow."""

from __future__ import annotations

import shutil
import warnings
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from staq.checkpoint import FORMAT, KEPT_STATES, delete_unused, explained, files_of, newest_state, still_needed
from staq.envs.snapshot import CannotRestore, restore, restores_exactly, snapshot
from staq.rivals.player import random_state, set_random_state
from staq.whole_files import read, write_atomically

PARAMETERS = "parameters.pt"
TRANSITION = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")
_COUNTERS = ("num_timesteps", "_episode_num", "_n_updates", "_n_calls", "exploration_rate")


class RivalCheckpoints(BaseCallback):
    """Writes a checkpoint every so many steps, between two rollouts, for ``resume_rival``.

    :param asked: whether one is wanted at once, such as before a run is stopped
    """

    def __init__(self, folder: Path, every: int, asked: Callable[[], bool]) -> None:
        super().__init__()
        self.folder, self.every, self.asked = folder, every, asked
        self.written = 0
        self.segments: list[tuple[str, int]] = []  # files of replayed steps and their lengths, oldest first
        self.kept: list[set[str]] = []

    def _init_callback(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.env_restores = restores_exactly(self.training_env)
        self.written = self.model.num_timesteps
        if any(self.folder.glob("state-*.pt")):
            state = newest_state(self.folder)
            self.segments = [(name, rows) for name, rows in state["replay"]["segments"]]
            self.kept = [files_of(state)]

    def _on_step(self) -> bool:
        if not isinstance(self.model, OffPolicyAlgorithm):  # SB3 counts episodes there only
            self.model._episode_num += int(self.locals["dones"].sum())
        return True

    def _on_rollout_start(self) -> None:
        due = self.num_timesteps - self.written >= self.every
        if due or (self.asked() and self.num_timesteps > self.written):
            self.write()

    def _on_training_end(self) -> None:
        if not self.asked() and self.num_timesteps > self.written:
            self.write()

    def write(self) -> None:
        """One checkpoint of the model as it is."""
        step = self.num_timesteps
        replay: dict[str, Any] = {"segments": []}
        with explained(f"The checkpoint at step {step}", self.folder):
            if isinstance(self.model, OffPolicyAlgorithm):
                buffer = self.model.replay_buffer
                assert buffer is not None
                new = min((step - self.written) // buffer.n_envs, buffer.size())
                name = f"replay-{step:06d}.pt"
                rows = (buffer.pos - new + np.arange(new)) % buffer.buffer_size
                arrays = {part: torch.from_numpy(getattr(buffer, part)[rows]) for part in TRANSITION}
                write_atomically(self.folder / name, arrays)
                self.segments = still_needed([*self.segments, (name, new)], buffer.size())
                replay = {"pos": buffer.pos, "full": buffer.full, "segments": [list(s) for s in self.segments]}
            state = _state_of(self.model, replay, self.env_restores)
            write_atomically(self.folder / f"state-{step:06d}.pt", state)
        self.written = step
        self.kept = [*self.kept, files_of(state)][-KEPT_STATES:]
        delete_unused(self.folder, self.kept)


def resume_rival(model: BaseAlgorithm, folder: Path) -> None:
    """Puts a model, built from the same configuration, where the newest checkpoint was taken."""
    state = newest_state(folder)
    model.set_parameters(state["parameters"])
    for name, value in state["attributes"].items():
        setattr(model, name, value)
    if isinstance(model, OffPolicyAlgorithm):
        assert model.replay_buffer is not None
        _restore_replay(model.replay_buffer, state["replay"], folder)
    assert model.env is not None
    model.env.reset()  # some parts of an environment are made at its first reset
    model._last_obs = state["last_obs"]
    model._last_episode_starts = state["episode_starts"]
    model.ep_info_buffer = deque(state["episodes"], maxlen=model._stats_window_size)
    model.ep_success_buffer = deque(state["successes"], maxlen=model._stats_window_size)
    try:
        if state["env"] is None:
            raise CannotRestore("their state is not plain data")
        restore(model.env, state["env"])
    except CannotRestore as reason:
        if model.seed is not None:  # the new episodes are not to be the run's first ones
            model.env.seed(int(np.random.SeedSequence([model.seed, model.num_timesteps]).generate_state(1)[0]))
        model._last_obs = model.env.reset()  # type: ignore[assignment]
        model._last_episode_starts = np.ones(model.n_envs, dtype=bool)
        warnings.warn(f"The environments begin new episodes, since {reason}; all else is as it was.", stacklevel=2)
    set_random_state(model, state["random"])


def save_parameters(model: BaseAlgorithm, folder: Path) -> None:
    """What is needed to play a model whose configuration is known, as data only."""
    content = {"policy": model.policy.state_dict(), "exploration_rate": getattr(model, "exploration_rate", 0.0)}
    # The folder appears with what belongs in it: that a run has a model says that it is finished.
    partial = folder.with_name(f"{folder.name}.partial")
    partial.mkdir(parents=True, exist_ok=True)
    write_atomically(partial / PARAMETERS, content)
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)


def load_parameters(model: BaseAlgorithm, folder: Path) -> None:
    content = read(folder / PARAMETERS)
    model.policy.load_state_dict(content["policy"])
    if hasattr(model, "exploration_rate"):
        model.exploration_rate = content["exploration_rate"]


def _state_of(model: BaseAlgorithm, replay: dict[str, Any], with_env: bool) -> dict[str, Any]:
    assert model.ep_info_buffer is not None
    assert model.ep_success_buffer is not None
    starts = model._last_episode_starts
    return {
        "format": FORMAT,
        "counters": {
            "iteration": model.num_timesteps,  # by which its file is named
            "num_timesteps": model.num_timesteps,
            "_episode_num": model._episode_num,
        },
        "attributes": {name: getattr(model, name) for name in _COUNTERS if hasattr(model, name)},
        "parameters": model.get_parameters(),
        "update": {"frozen": []},
        "replay": replay,
        "random": random_state(model),
        "episodes": snapshot(list(model.ep_info_buffer)) or [],
        "successes": snapshot(list(model.ep_success_buffer)) or [],
        "last_obs": np.array(model._last_obs),
        "episode_starts": None if starts is None else np.array(starts),
        "env": snapshot(model.env) if with_env else None,
    }


def _restore_replay(buffer: ReplayBuffer, state: dict[str, Any], folder: Path) -> None:
    """Segment by segment, since two copies may be too many; a new row replaces an old one, as it did before."""
    buffer.pos, buffer.full = state["pos"], state["full"]
    start = buffer.pos - sum(length for _, length in state["segments"])
    for name, length in state["segments"]:
        segment, rows = read(folder / name), (start + np.arange(length)) % buffer.buffer_size
        for part in TRANSITION:
            getattr(buffer, part)[rows] = segment[part].numpy()
        start += length
