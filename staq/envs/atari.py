"""Atari games as the field plays them: 84×84 grey frames of every fourth frame, the last four of them stacked.

Actions are sticky, as ALE's "v5" environments have them (Machado et al. 2018). Rewards are not clipped and a lost life
ends nothing, so that a return is the game's own score.
"""

from __future__ import annotations

from typing import Any

import gymnasium

FRAME_SKIP, SIZE, STACKED = 4, 84, 4


def is_atari(env_id: str) -> bool:
    return env_id.startswith("ALE/")


def make_atari(env_id: str, render_mode: str | None = None) -> gymnasium.Env[Any, Any]:
    """One game. Observations are uint8 [4, 84, 84]."""
    try:
        import ale_py
        import cv2  # noqa: F401  # with which frames are resized
    except ImportError as error:
        raise gymnasium.error.DependencyNotInstalled(f"Atari's games need the packages of an extra: {error}") from error
    gymnasium.register_envs(ale_py)
    env = gymnasium.make(env_id, render_mode=render_mode, disable_env_checker=True, frameskip=1)
    env = gymnasium.wrappers.AtariPreprocessing(env, frame_skip=FRAME_SKIP, screen_size=SIZE)
    return gymnasium.wrappers.FrameStackObservation(env, STACKED)
