"""Environments by name: names that only make understands, and extras that are missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import pytest

from staq.envs.make import make_env, make_envs


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any, **__: Any) -> None:
        raise gymnasium.error.DependencyNotInstalled("Box2D is not installed")

    monkeypatch.setattr(gymnasium, "make", missing)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'staq\[box2d\]'"):
        make_envs("LunarLander-v3", 1)


def test_names_that_only_make_understands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "games_that_i_made.py").write_text(
        "import gymnasium\n"
        "gymnasium.register('OfMine-v0', 'gymnasium.envs.classic_control:CartPoleEnv', max_episode_steps=9)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    try:
        env = make_env("games_that_i_made:OfMine-v0")
    finally:
        gymnasium.registry.pop("OfMine-v0", None)
    assert env.spec is not None
    assert env.spec.max_episode_steps == 9


def test_what_no_policy_can_see_is_named_before_sb3_fails_on_it() -> None:
    class Speaks(gymnasium.Env[Any, Any]):
        observation_space, action_space = gymnasium.spaces.Text(5), gymnasium.spaces.Discrete(2)

        def reset(self, **_: Any) -> tuple[str, dict[str, Any]]:
            return "hello", {}

    gymnasium.register("Speaks-v0", entry_point=Speaks)
    try:
        with pytest.raises(ValueError, match="no support for observations of Text"):
            make_envs("Speaks-v0", 1)
    finally:
        gymnasium.registry.pop("Speaks-v0")
