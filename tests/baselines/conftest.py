"""Baselines as a preset builds them."""

from __future__ import annotations

from typing import Any

from staq.baselines import build
from staq.cli import presets
from staq.envs.make import make_envs


def built(algo: str, env_id: str, **changes: Any) -> Any:
    preset = presets.for_environment(env_id, algo)
    values = preset.hyperparameters | changes
    return build(algo, preset.policy, make_envs(env_id, 1), values, timesteps=1_000_000, seed=0, device="cpu")
