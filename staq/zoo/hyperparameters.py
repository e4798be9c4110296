"""Our presets as RL Zoo's hyperparameters: ``python -m staq.zoo.hyperparameters`` writes its files anew."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from staq.cli import presets
from staq.envs import MINATAR_GAMES
from staq.registry import EVALUATIONS

ENVIRONMENTS = (
    "CartPole-v1",
    "Acrobot-v1",
    "MountainCar-v0",
    "LunarLander-v3",
    "Pendulum-v1",
    *(f"MinAtar/{game}-v1" for game in MINATAR_GAMES),
    *(f"{body}-v5" for body in ("HalfCheetah", "Walker2d", "Hopper", "Ant", "Humanoid")),
)
ATARI = {  # staq.envs.atari, by wrappers' names
    "env_kwargs": {"frameskip": 1},
    "env_wrapper": [
        {"gymnasium.wrappers.AtariPreprocessing": {"frame_skip": 4, "screen_size": 84}},
        {"gymnasium.wrappers.FrameStackObservation": {"stack_size": 4}},
    ],
}


def table(evaluation: str) -> dict[str, dict[str, Any]]:
    """What RL Zoo is to know of every environment, its "default", and "atari" where there is a preset."""
    found = {env_id: _entry(presets.for_environment(env_id, evaluation=evaluation)) for env_id in ENVIRONMENTS}
    atari = presets.for_environment("ALE/Pong-v5", evaluation=evaluation)
    if any(pattern.startswith("ALE") for pattern in atari.environments):
        found["atari"] = _entry(atari) | ATARI
    return found | {"default": _entry(presets.for_environment("", evaluation=evaluation))}


def _entry(preset: presets.Preset) -> dict[str, Any]:
    values = dict(preset.hyperparameters)
    if preset.evaluation == "lambda" and "learning_rate" in values:
        values["learning_rate"] = f"lin_{values['learning_rate']}"  # RL Zoo makes a constant schedule of a number
    return {"n_timesteps": preset.timesteps, "n_envs": preset.n_envs, "policy": preset.policy, **values}


def text(evaluation: str) -> str:
    """A file of hyperparameters."""
    import yaml

    first = "# Made from staq/cli/presets by python -m staq.zoo.hyperparameters: change those, not this.\n"
    return first + str(yaml.safe_dump(table(evaluation), sort_keys=False))


if __name__ == "__main__":
    for evaluation in EVALUATIONS:
        Path(__file__).with_name(f"{evaluation}.yml").write_text(text(evaluation))
