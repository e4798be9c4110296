"""Exact, incremental, safe checkpoints.

A folder of checkpoints holds three kinds of files, each written once:

    frozen-000123.pt   the networks of push 123
    replay-000124.pt   the transitions collected since the checkpoint before the 124th iteration's
    state-000124.pt    everything else after 124 iterations, and the names of the files that belong to it

so that a checkpoint costs what an iteration changed, not what has been gathered so far (``staq.whole_files`` says how
they are written). The two newest states are kept, so a damaged one loses one iteration.
"""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.callbacks import BaseCallback

from staq.algorithm import PolicyMirrorDescent
from staq.arguments import hyperparameters
from staq.envs.snapshot import CannotRestore, restore, restores_exactly, snapshot
from staq.whole_files import DamagedFile, read, verified_content, write_atomically

FORMAT = 1
KEPT_STATES = 2
_COUNTERS = (
    "num_timesteps",
    "steps_collected",
    "iteration",
    "_episode_num",
    "_n_updates",
    "_total_timesteps",
)


class Checkpoints(BaseCallback):
    """Writes a checkpoint at the end of every iteration (or every few), for ``resume``.

    :param folder: where; made if missing
    :param every: iterations between two checkpoints
    """

    model: PolicyMirrorDescent

    def __init__(self, folder: str | Path, every: int = 1, verbose: int = 0) -> None:
        super().__init__(verbose)
        self.folder = Path(folder)
        self.every = every
        self.env_restores = False
        self.last_iteration = 0
        self.steps_written = 0
        self.segments: list[tuple[str, int]] = []  # files of transitions and their lengths, oldest first
        self.kept: list[set[str]] = []  # the files of each kept state, oldest first

    def _init_callback(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.env_restores = restores_exactly(self.training_env)
        if not any(self.folder.glob("state-*.pt")):
            return
        state = newest_state(self.folder)
        if state["run"] != self.model.run_id or state["counters"]["iteration"] > self.model.iteration:
            raise FileExistsError(
                f"{self.folder} holds checkpoints of another run. Continue that run with staq.resume(model, folder) "
                "before learn(), or name another folder."
            )
        _check_identity(self.model, state["identity"])
        self.last_iteration = state["counters"]["iteration"]
        self.steps_written = state["counters"]["steps_collected"]
        self.segments = [(name, rows) for name, rows in state["replay"]["segments"]]
        self.kept = [files_of(older) for older in _earlier_states(self.folder, self.last_iteration)]
        self.kept.append(files_of(state))
        # Files of an iteration that was begun and not finished belong to another future.
        delete_unused(self.folder, self.kept)

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        if self.model.at_boundary and self.model.iteration >= self.last_iteration + self.every:
            self.write()

    def _on_training_end(self) -> None:
        if self.model.at_boundary and self.model.iteration > self.last_iteration:
            self.write()

    def write(self) -> None:
        """One checkpoint of the model as it is, between two iterations."""
        model, replay = self.model, self.model.replay
        on_disk = set().union(*self.kept)
        with explained(f"The checkpoint of iteration {model.iteration}", self.folder):
            for name in model.policy.policy_update.frozen_names():
                if name not in on_disk:
                    write_atomically(self.folder / name, model.policy.policy_update.frozen(name))
            new_rows = min(model.steps_collected - self.steps_written, replay.size())
            segment = f"replay-{model.iteration:06d}.pt"
            write_atomically(self.folder / segment, replay.newest(new_rows))
            self.segments = still_needed([*self.segments, (segment, new_rows)], replay.size())
            state = _state_of(model, self.segments, with_env=self.env_restores)
            write_atomically(self.folder / f"state-{model.iteration:06d}.pt", state)
        self.last_iteration, self.steps_written = model.iteration, model.steps_collected
        self.kept = [*self.kept, files_of(state)][-KEPT_STATES:]
        delete_unused(self.folder, self.kept)


@contextlib.contextmanager
def explained(what: str, folder: Path) -> Iterator[None]:
    """Says what a full disk or a folder that cannot be written means for a run."""
    try:
        yield
    except OSError as error:
        raise OSError(
            error.errno,
            f"{what} could not be written ({error.strerror}); the ones before it are intact. Make room or make the "
            "folder writable, then resume",
            str(folder),
        ) from error


def still_needed(segments: list[tuple[str, int]], size: int) -> list[tuple[str, int]]:
    """Of files of transitions and their lengths, oldest first, the last ones that a replay of a size consists of."""
    while len(segments) > 1 and sum(rows for _, rows in segments[1:]) >= size:
        segments = segments[1:]
    return segments


def delete_unused(folder: Path, kept: list[set[str]]) -> None:
    """Deletes every file of a checkpoint that is of none of the kept states."""
    used = set().union(*kept)
    for path in folder.iterdir():
        if re.fullmatch(r"(state|frozen|replay)-\d+\.pt(\.partial)?", path.name) and path.name not in used:
            path.unlink()


def resume(model: PolicyMirrorDescent, folder: str | Path) -> PolicyMirrorDescent:
    """Puts a model, built with the same arguments and environments, where the newest checkpoint was taken.

    ``model.learn(total - model.num_timesteps, reset_num_timesteps=False)`` then continues bit for bit as if the
    run had never stopped. Environments whose state is not plain data begin new episodes, with a warning.
    """
    folder = Path(folder)
    state = newest_state(folder)
    _check_identity(model, state["identity"])
    model.run_id = state["run"]
    for name, value in state["counters"].items():
        setattr(model, name, value)
    model.policy.q_net.load_state_dict(state["q_net"])
    model.policy.optimizer.load_state_dict(state["optimizer"])
    frozen = (read(folder / name) for name in state["update"]["frozen"])
    model.policy.policy_update.load_checkpoint(state["update"]["state"], frozen)
    model._begin_iteration()
    _restore_replay(model, state["replay"], folder)
    for name, generator in model._generators.items():
        generator.set_state(state["generators"][name].cpu())
    model._behaviour.load_state_dict(state["behaviour"])
    model.restore_statistics(state["episodes"], state["successes"])
    _restore_environment(model, state)
    return model


def newest_state(folder: Path) -> dict[str, Any]:
    """The newest state whose files are all whole; says so when it is not the newest of all."""
    candidates = sorted(folder.glob("state-*.pt"), key=lambda path: int(path.stem.removeprefix("state-")), reverse=True)
    if not candidates:
        raise FileNotFoundError(f"{folder} holds no checkpoint: there is nothing to resume.")
    problems = []
    for path in candidates:
        try:
            state = read(path)
            if state["format"] != FORMAT:
                raise DamagedFile(f"{path.name} has format {state['format']}, this version reads {FORMAT}")
            for name in files_of(state):
                verified_content(folder / name)
        except DamagedFile as problem:
            problems.append(str(problem))
            continue
        if problems:
            warnings.warn(f"{'; '.join(problems)}. Using the checkpoint before it, {path.name}.", stacklevel=2)
        return state
    raise DamagedFile(f"No checkpoint in {folder} is whole: {'; '.join(problems)}.")


def _earlier_states(folder: Path, iteration: int) -> list[dict[str, Any]]:
    """States before the given iteration, oldest first; damaged ones are of no use any more."""
    earlier = []
    for path in sorted(folder.glob("state-*.pt")):
        with contextlib.suppress(DamagedFile):
            state = read(path)
            if state["counters"]["iteration"] < iteration:
                earlier.append(state)
    return earlier[1 - KEPT_STATES :]


def _state_of(model: PolicyMirrorDescent, segments: list[tuple[str, int]], with_env: bool) -> dict[str, Any]:
    replay = model.replay
    assert model.ep_info_buffer is not None
    assert model.ep_success_buffer is not None
    return {
        "format": FORMAT,
        "run": model.run_id,
        "identity": _identity(model),
        "counters": {name: getattr(model, name) for name in _COUNTERS},
        "q_net": model.policy.q_net.state_dict(),
        "optimizer": model.policy.optimizer.state_dict(),
        "update": {
            "state": model.policy.policy_update.checkpoint(),
            "frozen": model.policy.policy_update.frozen_names(),
        },
        "replay": {
            "pos": replay.pos,
            "full": replay.full,
            "accumulated": replay.accumulated[: replay.size()].clone(),
            "segments": [list(segment) for segment in segments],
        },
        "generators": {name: generator.get_state() for name, generator in model._generators.items()},
        "behaviour": model._behaviour.state_dict(),
        "episodes": snapshot(list(model.ep_info_buffer)) or [],
        "successes": snapshot(list(model.ep_success_buffer)) or [],
        "last_obs": np.array(model._last_obs),
        "env": snapshot(model.env) if with_env else None,
        "normalization": _normalization(model),
    }


def files_of(state: dict[str, Any]) -> set[str]:
    segments = {name for name, _ in state["replay"]["segments"]}
    return {f"state-{state['counters']['iteration']:06d}.pt", *state["update"]["frozen"], *segments}


def _identity(model: PolicyMirrorDescent) -> dict[str, Any]:
    """Every argument that the continued run depends on; code, such as a schedule, only by its name."""
    named: dict[str, Any] = {"algorithm": type(model).__name__}
    named |= {name: getattr(model, name) for name in (*hyperparameters(type(model)), "n_envs", "seed")}
    rate = model.learning_rate
    named["learning_rate"] = "a schedule" if callable(rate) else float(rate)
    named["device"] = model.device.type  # whose generators have states of their own kind
    named["policy"] = type(model.policy).__name__
    named["policy_kwargs"] = re.sub(r" at 0x[0-9a-f]+", "", repr(sorted(model.policy_kwargs.items())))
    return named


def _check_identity(model: PolicyMirrorDescent, saved: dict[str, Any]) -> None:
    current = _identity(model)
    for name, value in saved.items():
        if current.get(name) != value:
            raise ValueError(
                f"The checkpoint was written with {name}={value!r}, the model has {current.get(name)!r}: build it with "
                "the same arguments to continue the run, or use another folder."
            )


def _restore_replay(model: PolicyMirrorDescent, state: dict[str, Any], folder: Path) -> None:
    replay = model.replay
    replay.pos, replay.full = state["pos"], state["full"]
    size = replay.size()
    if sum(rows for _, rows in state["segments"]) < size:
        raise DamagedFile(f"{folder} lacks transitions: {size} are expected in {state['segments']}.")
    segments = [read(folder / name) for name, _ in state["segments"]]
    rows = (replay.pos - size + torch.arange(size)) % replay.buffer_size  # oldest first
    for name in replay.TRANSITION:
        getattr(replay, name)[rows] = torch.cat([segment[name] for segment in segments])[-size:].to(replay.device)
    replay.remake_kept()
    replay.accumulated[:size] = state["accumulated"].to(replay.device)
    replay.pending[:] = False


def _normalization(model: PolicyMirrorDescent) -> Any:
    """The statistics of a VecNormalize, which do not depend on what its environments are doing."""
    normalize = model.get_vec_normalize_env()
    return None if normalize is None else [snapshot(normalize.obs_rms), snapshot(normalize.ret_rms)]


def _restore_environment(model: PolicyMirrorDescent, state: dict[str, Any]) -> None:
    env = model.env
    if env is None:
        return
    reason = "their state is not plain data"
    if state["env"] is not None:
        env.reset()  # some parts of an environment are made at its first reset
        try:
            restore(env, state["env"])
            model._last_obs = state["last_obs"]
            return
        except CannotRestore as error:
            reason = str(error)
    normalize = model.get_vec_normalize_env()
    if normalize is not None and state["normalization"] is not None:
        for statistics, saved in zip((normalize.obs_rms, normalize.ret_rms), state["normalization"], strict=True):
            restore(statistics, saved)
    if model.seed is not None:  # the new episodes are not to be those of the first iteration
        env.seed(int(np.random.SeedSequence([model.seed, model.iteration]).generate_state(1)[0]))
    model._last_obs = env.reset()  # type: ignore[assignment]
    model._behaviour.end_episodes(torch.ones(model.n_envs, dtype=torch.bool, device=model.device))
    warnings.warn(f"The environments begin new episodes, since {reason}; all else is as it was.", stacklevel=3)
