"""Runs that go on, and Box2D where it is installed."""

from __future__ import annotations

import warnings
from contextlib import suppress
from pathlib import Path

from stable_baselines3.common.callbacks import BaseCallback

from staq import Checkpoints, StaQ, resume

# Its first import warns from within C, which does not survive that a warning is an error.
with warnings.catch_warnings(), suppress(ImportError):
    warnings.simplefilter("ignore")
    import Box2D  # noqa: F401


def finish(model: StaQ, folder: Path, total: int, *others: BaseCallback) -> StaQ:
    """What the documentation says: resume, then learn what is left."""
    resume(model, folder)
    callbacks = [*others, Checkpoints(folder)]
    return model.learn(total - model.num_timesteps, reset_num_timesteps=False, callback=callbacks)
