"""Files are whole or not there, and hold data only."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from staq import Checkpoints, resume
from staq.storage.atomic_files import write_atomically
from tests.conftest import small_model


def test_what_is_no_plain_data_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"learned/policy is a \w*Path"):
        write_atomically(tmp_path / "state", {"learned": {"policy": tmp_path}})
    assert not any(tmp_path.iterdir())


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
