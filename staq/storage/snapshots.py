"""Every network that a stack has ever held, on disk: what an audit against exact mirror descent needs.

frozen-000123.safetensors          the networks of push 123
frozen-000120-000123.safetensors   those that four pushes were merged into
push-000123.safetensors            the stack after push 123, what it weighs each of them by, and some states it saw
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from stable_baselines3.common.callbacks import BaseCallback

from staq.loop import PolicyMirrorDescent
from staq.networks.architecture import Weights
from staq.policy_improvement.mirror_descent import memory_correction
from staq.policy_improvement.q_stack import QStack, entries_of
from staq.policy_improvement.stack import Stack, file_name
from staq.storage.atomic_files import read, write_atomically
from staq.storage.checkpoint import explained
from staq.storage.plain_data import DamagedFile

STATES_PER_PUSH = 128


class Snapshots(BaseCallback):
    """Writes every push of a training, and every merge, to a folder.

    :param folder: where; made if missing. A resumed training goes on in it.
    """

    model: PolicyMirrorDescent

    def __init__(self, folder: str | Path) -> None:
        super().__init__()
        self.folder = Path(folder)

    def _init_callback(self) -> None:
        improvement = self.model.policy.improvement
        if not isinstance(improvement, Stack):
            raise ValueError(
                f"{type(self.model).__name__} has an actor, of which there are no snapshots: leave them out, or use "
                "StaQ or ExactPMD."
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        self.stack, self.merging = improvement.stack, improvement.merging
        self.n_pushed, self.beta = self.stack.n_pushed, self.model.step_size.beta
        self.on_disk = {name for name in map(file_name, self.stack.entries) if (self.folder / name).exists()}
        for path in self.folder.glob("push-*.safetensors"):
            if _number(path) >= self.n_pushed:  # of a future that will come anew
                path.unlink()

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        self._write()

    def _on_training_end(self) -> None:
        if self.model.at_boundary:
            self._write()

    def _write(self) -> None:
        pushed = self.stack.n_pushed > self.n_pushed
        self.n_pushed, beta, self.beta = self.stack.n_pushed, self.beta, self.model.step_size.beta
        if not pushed:
            return
        with explained(f"The snapshot of push {self.n_pushed - 1}", self.folder):
            for entry in self.stack.entries:
                if file_name(entry) not in self.on_disk:
                    write_atomically(self.folder / file_name(entry), self.stack.ensemble(entry))
            self.on_disk = {file_name(entry) for entry in self.stack.entries}
            states = self.model.experience.states(self.model.policy, self.model.shared.batch_size).obs
            generator = torch.Generator().manual_seed(self.n_pushed)
            content = {
                "stack": self.stack.description(),
                "beta": beta,
                "exact_prefactor": self.stack.prefactor / memory_correction(self.beta, self.stack.memory_size),
                "median_policy_kl": self.merging.median_movement,
                "kl_bound": self.merging.kl_bound(self.stack.prefactor),
                "states": states[torch.randint(len(states), (STATES_PER_PUSH,), generator=generator)],
            }
            write_atomically(self.folder / f"push-{self.n_pushed - 1:06d}.safetensors", content)


@dataclass(frozen=True)
class Snapshot:
    """A stack after one push."""

    folder: Path
    stack: dict[str, Any]
    """``QStack.description``."""
    beta: float
    """By which the push multiplied what was there."""
    exact_prefactor: float
    """That of exact mirror descent, which needs no correction for a finite memory."""
    median_policy_kl: float
    kl_bound: float
    states: torch.Tensor
    """Some that were visited at the time."""

    @property
    def pushed(self) -> Weights:
        """The networks that were pushed."""
        return read(self.folder / f"frozen-{self.stack['n_pushed'] - 1:06d}.safetensors")

    def restore(self, stack: QStack) -> None:
        """Makes a stack of the same architecture this one."""
        own = {name: value for name, value in self.stack.items() if name != "prefactor"}
        stack.restore(**self.stack, ensembles=(read(self.folder / file_name(entry)) for entry in entries_of(**own)))


def read_snapshots(folder: str | Path) -> Iterator[Snapshot]:
    """Every push from the first on; a gap is an error."""
    folder = Path(folder)
    paths = sorted(folder.glob("push-*.safetensors"), key=_number)
    if not paths:
        raise FileNotFoundError(f"{folder} holds no snapshots: train with --keep-snapshots, or with staq.Snapshots.")
    for push, path in enumerate(paths):
        if _number(path) != push:
            raise DamagedFile(
                f"{folder} has no snapshot of push {push}, and exact mirror descent is made of all of them: a run must "
                "keep them from its beginning."
            )
        yield Snapshot(folder, **read(path))


def _number(path: Path) -> int:
    return int(path.stem.removeprefix("push-"))
