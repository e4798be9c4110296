"""The MinAtar environments keep Gymnasium's promises."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import staq  # noqa: F401  (registers the games)
from staq.envs import MINATAR_GAMES
from staq.envs.minatar import roll

ACTIONS = {"Asterix": 5, "Breakout": 3, "Freeway": 3, "Seaquest": 6, "SpaceInvaders": 4}
CHANNELS = {"Asterix": 4, "Breakout": 4, "Freeway": 7, "Seaquest": 10, "SpaceInvaders": 6}


@pytest.mark.parametrize("game", MINATAR_GAMES)
def test_games_pass_gymnasiums_checker(game: str) -> None:
    env = gymnasium.make(f"MinAtar/{game}-v1", disable_env_checker=True)
    check_env(env.unwrapped, skip_render_check=True)
    assert env.action_space.n == ACTIONS[game]  # type: ignore[attr-defined]
    assert env.observation_space.shape == (10, 10, CHANNELS[game])
    assert env.observation_space.dtype == bool


@pytest.mark.parametrize("game", MINATAR_GAMES)
def test_a_seed_fixes_everything_also_on_a_used_environment(game: str) -> None:
    """Sticky actions repeat the last action, which must not survive a reset."""

    def play(env: gymnasium.Env[Any, Any], last_action: int) -> list[Any]:
        outcomes: list[Any] = []
        for seed in range(40):  # one first step in ten repeats the action before it
            env.reset(seed=seed + 1000)
            env.step(last_action)
            outcomes.append(env.reset(seed=seed)[0].tobytes())
            rng = np.random.default_rng(seed)
            for _ in range(6):
                obs, reward, terminated, truncated, _ = env.step(int(rng.integers(ACTIONS[game])))
                outcomes.append((obs.tobytes(), reward, terminated, truncated))
                if terminated or truncated:
                    outcomes.append(env.reset()[0].tobytes())
        return outcomes

    env = gymnasium.make(f"MinAtar/{game}-v1")
    assert play(env, 0) == play(env, ACTIONS[game] - 1)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("shift", [-1, 0, 1, 9])
def test_boards_roll_as_numpys_do(shift: int, axis: int) -> None:
    board = np.random.default_rng(0).random((10, 10))
    np.testing.assert_array_equal(roll(board, shift, axis), np.roll(board, shift, axis))


def test_freeway_is_truncated_and_rewards_are_floats() -> None:
    env = gymnasium.make("MinAtar/Freeway-v1")
    env.reset(seed=0)
    for step in range(2501):
        _, reward, terminated, truncated, _ = env.step(1)
        assert isinstance(reward, float)
        assert not terminated
        assert truncated == (step == 2500)


def test_the_time_limit_is_5000_steps() -> None:
    spec = gymnasium.spec("MinAtar/Breakout-v1")
    assert spec.max_episode_steps == 5000


def test_frames_can_be_watched() -> None:
    env = gymnasium.make("MinAtar/Seaquest-v1", render_mode="rgb_array")
    env.reset(seed=0)
    frame = env.render()
    assert isinstance(frame, np.ndarray)
    assert frame.shape == (320, 320, 3)
    assert frame.dtype == np.uint8
    assert len(np.unique(frame.reshape(-1, 3), axis=0)) > 1
    assert env.unwrapped.get_action_meanings() == ["none", "left", "up", "right", "down", "fire"]  # type: ignore[attr-defined]


def test_importing_staq_needs_neither_minatar_nor_box2d() -> None:
    code = (
        "import sys; sys.modules['minatar'] = sys.modules['Box2D'] = None\n"
        "import staq, gymnasium\n"
        "try: gymnasium.make('MinAtar/Breakout-v1')\n"
        "except gymnasium.error.DependencyNotInstalled as e: print(e)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'staq[minatar]'" in result.stdout


def test_minatars_own_names_are_taken_without_a_warning() -> None:
    """By importing staq, which Gymnasium does for "staq:…"; what MinAtar has beside them stays its own."""
    code = (
        "import gymnasium, minatar.gym\n"
        "minatar.gym.register_envs()\n"
        "for where, v in zip(('', 'staq:', '', ''), (1, 1, 1, 0)):\n"
        "    print(type(gymnasium.make(f'{where}MinAtar/Breakout-v{v}').unwrapped).__module__)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["minatar.gym", "staq.envs.minatar", "staq.envs.minatar", "minatar.gym"]
    assert "Overriding" not in ran.stderr
