"""The MinAtar games as Gymnasium environments that keep Gymnasium's promises.

Against MinAtar's own wrapper: a seed fixes everything, also on an environment that was used before (the action
to be repeated is forgotten at a reset); ``np_random`` is seeded; Freeway's end after 2,500 frames is a
truncation, because nothing in the game ended; frames are pictures of a size one can watch.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

FRAME_SCALE = 32  # pixels per cell of a rendered frame


class MinAtar(gymnasium.Env[np.ndarray, np.int64]):
    """One game with its minimal set of actions (the "v1" environments)."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 15}  # noqa: RUF012

    def __init__(self, game: str, render_mode: str | None = None) -> None:
        try:
            from minatar import Environment  # takes a second to import: only when a game is made
        except ImportError as error:
            raise gymnasium.error.DependencyNotInstalled(
                "MinAtar is not installed: pip install 'staq[minatar]'"
            ) from error
        self.render_mode = render_mode
        self.game = Environment(game)
        if game == "space_invaders":
            _roll_quickly()
        self.actions = self.game.minimal_action_set()
        self.ends_by_time_only = game == "freeway"
        self.seeded = False
        self.action_space = spaces.Discrete(len(self.actions))
        self.observation_space = spaces.Box(0, 1, self.game.state_shape(), dtype=bool)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None or not self.seeded:
            self.game.seed(int(self.np_random.integers(2**31)))
            self.seeded = True
        self.game.reset()
        self.game.last_action = 0
        return self.game.state(), {}

    def step(self, action: int | np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        reward, ended = self.game.act(self.actions[int(action)])
        terminated = bool(ended) and not self.ends_by_time_only
        return self.game.state(), float(reward), terminated, bool(ended) and not terminated, {}

    def get_action_meanings(self) -> list[str]:
        words = {"n": "none", "l": "left", "u": "up", "r": "right", "d": "down", "f": "fire"}
        return [words[self.game.env.action_map[action]] for action in self.actions]

    def render(self) -> np.ndarray:
        from matplotlib import colormaps

        state = self.game.state()
        n_channels = state.shape[-1]
        palette = colormaps["cubehelix"](np.linspace(0.25, 0.95, n_channels))[:, :3]
        palette = np.vstack([np.zeros(3), palette])
        topmost = (state * np.arange(1, n_channels + 1)).max(-1)  # 0 where a cell is empty
        frame = (255 * palette[topmost]).astype(np.uint8)
        return frame.repeat(FRAME_SCALE, axis=0).repeat(FRAME_SCALE, axis=1)


def _roll_quickly() -> None:
    """Gives SpaceInvaders a roll for boards: NumPy's, for any array, takes more than a third of the game's time."""
    from minatar.environments import space_invaders

    space_invaders.np = SimpleNamespace(**(vars(np) | {"roll": roll}))


def roll(board: np.ndarray, shift: int, axis: int) -> np.ndarray:
    """Return ``np.roll`` of a board by fewer cells than it has."""
    if axis == 0:
        return np.concatenate([board[-shift:], board[:-shift]])
    return np.concatenate([board[:, -shift:], board[:, :-shift]], axis=1)
