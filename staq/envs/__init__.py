"""Environments: the MinAtar games, and what a run needs of any environment."""

from __future__ import annotations

import gymnasium

MINATAR_GAMES = {
    "Asterix": "asterix",
    "Breakout": "breakout",
    "Freeway": "freeway",
    "Seaquest": "seaquest",
    "SpaceInvaders": "space_invaders",
}
MINATAR_TIME_LIMIT = 5000
"""In training and in evaluation, as in the authors' release."""


def register() -> None:
    """Makes ``gymnasium.make("MinAtar/Breakout-v1")`` work; MinAtar itself is imported when a game is made.

    MinAtar's own ``register_envs`` has the same names: ours take their place, without Gymnasium's warning.
    """
    for name, game in MINATAR_GAMES.items():
        gymnasium.registry.pop(f"MinAtar/{name}-v1", None)
        gymnasium.register(
            f"MinAtar/{name}-v1",
            entry_point="staq.envs.minatar:MinAtar",
            kwargs={"game": game},
            max_episode_steps=MINATAR_TIME_LIMIT,
        )
