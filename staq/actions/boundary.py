"""A bounded continuous action space as its boundary actions (App. E), for any algorithm with discrete actions."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.utils import RecordConstructorArgs

from staq.actions.factored import check_box


class BoundaryActions(gymnasium.ActionWrapper[Any, Any, Any], RecordConstructorArgs):
    """Offers 2d + 1 actions: rest, and each bound of one coordinate while the others rest.

    Rest is zero or, for a coordinate whose bounds exclude zero, the middle between them. Action 0 is rest; 1 and 2 are
    the lower and the upper bound of the first coordinate, and so on.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        RecordConstructorArgs.__init__(self)
        super().__init__(env)
        box = env.action_space
        if not isinstance(box, spaces.Box):
            raise ValueError(f"Boundary actions are those of a Box, and {box} is none: it needs no such wrapper.")
        check_box(box)
        self.table = boundary_actions(box)
        self.action_space = spaces.Discrete(len(self.table))

    def action(self, action: Any) -> np.ndarray:
        chosen: np.ndarray = self.table[int(action)]
        return chosen.copy()  # an environment may write into its action

    def get_action_meanings(self) -> list[str]:
        """As in ALE: a word for each action."""
        rest, d = "rest", (len(self.table) - 1) // 2
        return [rest, *(f"{bound} {i}" for i in range(d) for bound in ("low", "high"))]


def boundary_actions(box: spaces.Box) -> np.ndarray:
    """[2d + 1, *shape]"""
    low, high = box.low.flatten(), box.high.flatten()
    rest = np.where((low <= 0) & (high >= 0), 0.0, (low + high) / 2)
    table = np.tile(rest, (2 * len(rest) + 1, 1))
    for i in range(len(rest)):
        table[1 + 2 * i, i], table[2 + 2 * i, i] = low[i], high[i]
    return table.astype(box.dtype).reshape(-1, *box.shape)
