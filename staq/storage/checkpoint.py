"""Exact, incremental, safe checkpoints of our loop and of stable-baselines3's models.

A folder of checkpoints holds three kinds of files, each written once:

    frozen-000123.safetensors   the networks of push 123 (frozen-000120-000123.safetensors: merged of four pushes)
    replay-000124.safetensors   the transitions collected since the checkpoint before the 124th iteration's
    state-000124.safetensors    everything else after 124 iterations, and the names of the files that belong to it

so that a checkpoint costs what an iteration changed, not what has been gathered so far (``atomic_files`` says how they
are written). All of it is data, the states of environments too (``environment_snapshot``), so that resuming needs
nobody's trust. SB3's models have no iterations: theirs are numbered by environment steps. The two newest states are
retained, so a damaged one loses one iteration.
"""

from __future__ import annotations

import contextlib
import math
import re
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback

from staq.storage.atomic_files import FORMAT, read, write_atomically
from staq.storage.environment_snapshot import restores_exactly
from staq.storage.plain_data import DamagedFile
from staq.storage.training_state import Segments, TrainingState, newest_rows, rows_of, training_state

STATES = "state-*.safetensors"
RETAINED_STATES = 2
Model = TypeVar("Model", bound=BaseAlgorithm)


class Checkpoints(BaseCallback):
    """Writes a checkpoint at the end of every iteration (or every few), for ``resume``.

    :param folder: where; made if missing
    :param every: iterations between two checkpoints; environment steps for a model of SB3
    :param asked: says whether one is wanted at once, such as before a run is stopped
    :param seconds: at least so long after the last one; None leaves it to the policy evaluation, whose iterations may
        be short
    """

    def __init__(
        self,
        folder: str | Path,
        every: int = 1,
        verbose: int = 0,
        asked: Callable[[], bool] = lambda: False,
        seconds: float | None = None,
    ) -> None:
        super().__init__(verbose)
        self.folder, self.every, self.asked, self.seconds = Path(folder), every, asked, seconds
        self.written_at = -math.inf
        self.env_restores = False
        self.last = 0
        self.steps_written: int | None = None  # nothing is on disk yet
        self.segments: Segments = []
        self.retained: list[set[str]] = []  # the files of each retained state, oldest first

    def _init_callback(self) -> None:
        self.training: TrainingState = training_state(self.model)
        if self.seconds is None:
            self.seconds = self.training.seconds_per_checkpoint
        self.folder.mkdir(parents=True, exist_ok=True)
        self.env_restores = restores_exactly(self.training_env)
        if not holds_checkpoints(self.folder):
            return
        state = newest_state(self.folder)
        if state["run"] != self.training.run_id or state["progress"] > self.training.progress:
            raise FileExistsError(
                f"{self.folder} holds checkpoints of another run. Continue that run with staq.resume(model, folder) "
                "before learn(), or name another folder."
            )
        _check_identity(self.training, state["identity"])
        self.last, self.steps_written = state["progress"], state["steps"]
        self.segments = [(name, rows) for name, rows in state["replay"]["segments"]]
        self.retained = [files_of(older) for older in _earlier_states(self.folder, self.last)]
        self.retained.append(files_of(state))
        # Files of an iteration that was begun and not finished belong to another future.
        delete_unused(self.folder, self.retained)

    @property
    def _steps(self) -> int:
        """Environment steps over all calls of ``learn``."""
        return int(getattr(self.model, "steps_collected", self.model.num_timesteps))

    def _on_step(self) -> bool:
        self.training.on_step(self.locals)
        return True

    def _on_rollout_start(self) -> None:
        new = self.training.progress - self.last
        due = new >= self.every and time.monotonic() - self.written_at >= (self.seconds or 0.0)
        if self.training.at_boundary and (due or (self.asked() and new > 0)):
            self.write()

    def _on_training_end(self) -> None:
        if self.training.ended_whole and self.training.progress > self.last:
            self.write()

    def write(self) -> None:
        """Write one checkpoint of the model as it is, between two iterations."""
        training, number = self.training, f"{self.training.progress:06d}"
        on_disk = set().union(*self.retained)
        with explained(f"The checkpoint of iteration {training.progress}", self.folder):
            for name, content in training.frozen().items():
                if name not in on_disk:
                    write_atomically(self.folder / name, content())
            if training.replay is not None:
                unwritten = None if self.steps_written is None else self._steps - self.steps_written
                new_rows = rows_of(training.replay, unwritten)
                segment = f"replay-{number}.safetensors"
                write_atomically(self.folder / segment, newest_rows(training.replay, new_rows))
                self.segments = still_needed([*self.segments, (segment, new_rows)], training.replay.size())
            state = training.capture(self.segments, self.env_restores) | {"steps": self._steps}
            write_atomically(self.folder / f"state-{number}.safetensors", state)
        self.last, self.steps_written, self.written_at = training.progress, self._steps, time.monotonic()
        self.retained = [*self.retained, files_of(state)][-RETAINED_STATES:]
        delete_unused(self.folder, self.retained)


def resume(model: Model, folder: str | Path) -> Model:
    """Put a model, built with the same arguments and environments, where the newest checkpoint was taken.

    ``model.learn(total - model.num_timesteps, reset_num_timesteps=False)`` then continues bit for bit as if the
    run had never stopped. Environments whose state cannot be restored begin new episodes, with a warning that
    says why.
    """
    folder = Path(folder)
    state, training = newest_state(folder), training_state(model)
    _check_identity(training, state["identity"])
    if training.run_id:
        model.run_id = state["run"]  # type: ignore[attr-defined]
    training.restore(state, folder)
    return model


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


def still_needed(segments: Segments, size: int) -> Segments:
    """Of files of transitions and their lengths, oldest first, the last ones that a replay of a size consists of."""
    while len(segments) > 1 and sum(rows for _, rows in segments[1:]) >= size:
        segments = segments[1:]
    return segments


def delete_unused(folder: Path, retained: list[set[str]]) -> None:
    """Deletes every file of a checkpoint that is of none of the retained states."""
    used = set().union(*retained)
    for path in folder.iterdir():
        if (
            re.fullmatch(r"(state|frozen|replay)-\d+(-\d+)?\.safetensors(\.partial)?", path.name)
            and path.name not in used
        ):
            path.unlink()


def holds_checkpoints(folder: Path) -> bool:
    """Whether there is anything to resume, of this version or an older one."""
    return any(folder.glob("state-*"))


def newest_state(folder: Path) -> dict[str, Any]:
    """The newest state whose files are all whole; says so when it is not the newest of all."""
    candidates = sorted(folder.glob(STATES), key=_number, reverse=True)
    if not candidates:
        if any(folder.glob("state-*.pt")):
            raise ValueError(
                f"{folder} holds checkpoints of format 3, which staq 0.1.0 wrote as .pt files, and this version reads "
                f"format {FORMAT}: finish the run with the commit that its config.json names, or begin it anew in "
                "another folder."
            )
        inner = folder / "checkpoints"
        hint = f" Those of this run are in {inner}." if holds_checkpoints(inner) else ""
        raise FileNotFoundError(f"{folder} holds no checkpoint: there is nothing to resume.{hint}")
    problems = []
    for path in candidates:
        try:
            state = read(path)
            for name in files_of(state) - {path.name}:
                read(folder / name)
        except DamagedFile as problem:
            problems.append(str(problem))
            continue
        if problems:
            warnings.warn(f"{'; '.join(problems)}. Using the checkpoint before it, {path.name}.", stacklevel=2)
        return state
    raise DamagedFile(f"No checkpoint in {folder} is whole: {'; '.join(problems)}.")


def _number(path: Path) -> int:
    return int(path.stem.removeprefix("state-"))


def _earlier_states(folder: Path, progress: int) -> list[dict[str, Any]]:
    """States before the given one, oldest first; damaged ones are of no use any more."""
    earlier = []
    for path in sorted(folder.glob(STATES), key=_number):
        with contextlib.suppress(DamagedFile):
            state = read(path)
            if state["progress"] < progress:
                earlier.append(state)
    return earlier[1 - RETAINED_STATES :]


def files_of(state: dict[str, Any]) -> set[str]:
    segments = {name for name, _ in state["replay"]["segments"]}
    return {f"state-{state['progress']:06d}.safetensors", *state["frozen"], *segments}


def _check_identity(training: TrainingState, saved: dict[str, Any]) -> None:
    current = training.identity()
    for name, value in saved.items():
        if current.get(name) != value:
            raise ValueError(
                f"The checkpoint was written with {name}={value!r}, the model has {current.get(name)!r}: build it with "
                "the same arguments to continue the run, or use another folder."
            )
