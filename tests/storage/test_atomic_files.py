"""Files are whole or not there, and hold data only."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from staq import Checkpoints, resume
from staq.storage.atomic_files import read, write_atomically
from tests.conftest import small_model


def test_a_checkpoint_cannot_run_code(tmp_path: Path) -> None:
    class Payload:
        def __reduce__(self) -> Any:
            return os.system, (f"touch {tmp_path}/pwned",)

    write_atomically(tmp_path / "state-000001.pt", {"harmless": Payload()})
    with pytest.raises(pickle.UnpicklingError):
        read(tmp_path / "state-000001.pt")
    assert not (tmp_path / "pwned").exists()


def test_a_full_disk_leaves_the_checkpoints_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_model()
    model.learn(400, callback=Checkpoints(tmp_path))
    files = {path.name for path in tmp_path.iterdir()}

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"could not be written \(No space left on device\).*intact"):
        model.learn(400, reset_num_timesteps=False, callback=Checkpoints(tmp_path))
    assert {path.name for path in tmp_path.iterdir()} == files
    monkeypatch.undo()
    assert resume(small_model(), tmp_path).iteration == 2
