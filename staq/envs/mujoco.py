"""What MuJoCo's environments need beside their name."""

from __future__ import annotations

import functools
import importlib.util
import logging
import os
import sys
from typing import Any

import gymnasium

_LOG = logging.getLogger(__name__)


def options_for(env_id: str, recorded: bool) -> dict[str, Any]:
    """For ``gymnasium.make``: the model's own camera, which follows it, where it is recorded; nothing elsewhere."""
    try:
        entry_point = str(gymnasium.spec(env_id).entry_point)
    except gymnasium.error.Error:  # names that only ``make`` understands, such as module:Env-v0
        return {}
    if ".mujoco." not in entry_point or importlib.util.find_spec("mujoco") is None:
        return {}
    if recorded and sys.platform == "linux" and not os.environ.get("DISPLAY"):
        os.environ.setdefault("MUJOCO_GL", "egl")  # without a window; read when MuJoCo is imported
    import mujoco

    mujoco.set_mju_user_warning(_once)
    return {"camera_name": "track"} if recorded else {}


@functools.cache
def _once(message: str) -> None:
    """A run makes the same model many times, and MuJoCo would print its warnings each time and log them to a file.

    A Python warning would not do: one turned into an error ends the process inside MuJoCo.
    """
    _LOG.warning("MuJoCo: %s", message)
