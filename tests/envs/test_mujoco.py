"""MuJoCo's environments: one warning, no file, and rendering without a window."""

from __future__ import annotations

import ctypes.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from staq.envs import mujoco
from staq.envs.make import make_envs


@pytest.mark.skipif(ctypes.util.find_library("EGL") is None, reason="MuJoCo's headless renderer needs EGL")
def test_mujoco_is_recorded_without_a_window(tmp_path: Path) -> None:
    """In a process of its own: MuJoCo reads how to render when it is imported."""
    script = (
        "from staq.envs.make import make_env\n"
        "env = make_env('HalfCheetah-v5', 'boundary', render_mode='rgb_array'); env.reset(seed=0)\n"
        "assert env.render().std() > 5"
    )
    hidden = {name: value for name, value in os.environ.items() if name not in ("DISPLAY", "MUJOCO_GL")}
    subprocess.run([sys.executable, "-c", script], check=True, env=hidden | {"DISPLAY": ""}, cwd=tmp_path, timeout=120)


def test_mujoco_warns_once_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """HalfCheetah's model has an attribute that MuJoCo deprecates, said each time the model is made."""
    monkeypatch.chdir(tmp_path)
    mujoco._once.cache_clear()
    make_envs("HalfCheetah-v5", 3).close()
    assert sum("settotalmass" in record.message for record in caplog.records) == 1
    assert "settotalmass" not in "".join(capfd.readouterr())
    assert list(tmp_path.iterdir()) == []
