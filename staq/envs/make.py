"""Environments by name, as runs use them."""

from __future__ import annotations

import functools
import os
import sys
from typing import Any

import gymnasium
from stable_baselines3.common.vec_env import VecMonitor

from staq.actions import BoundaryActions
from staq.envs import mujoco
from staq.envs.atari import is_atari, make_atari
from staq.envs.masks import ActionMasks, offers_masks
from staq.envs.sequential_vec_env import SequentialVecEnv
from staq.envs.supported import supported_env

EXTRA_OF = {
    "MinAtar": "minatar",
    "Atari": "atari",
    "Box2D": "box2d",
    "box2d": "box2d",
    "mujoco": "mujoco",
    "MuJoCo": "mujoco",
}
OF_ONES_OWN = "One of your own is named with its module, as in module:Name-v0."


def make_envs(env_id: str, n_envs: int, actions: str | None = None) -> VecMonitor:
    """Environments with their returns counted."""
    return VecMonitor(SequentialVecEnv([lambda: make_env(env_id, actions)] * n_envs))


@functools.cache
def has_masks(env_id: str) -> bool:
    """Whether an environment says which actions are allowed."""
    env = _made(env_id, None)
    found = offers_masks(env)
    env.close()
    return found


def make_env(env_id: str, actions: str | None = None, render_mode: str | None = None) -> gymnasium.Env[Any, Any]:
    """One environment; a missing extra, an unknown name or actions of another kind are a clear error."""
    env = _made(env_id, render_mode)
    supported_env(env)  # or SB3 fails on its spaces, and does not say why
    if actions is not None and not isinstance(env.action_space, gymnasium.spaces.Box):
        raise ValueError(f"{env_id} has finite actions ({env.action_space}): leave out --actions {actions}.")
    if actions == "boundary":
        return BoundaryActions(env)
    return ActionMasks(env) if has_masks(env_id) else env


def _made(env_id: str, render_mode: str | None) -> gymnasium.Env[Any, Any]:
    module, _, name = env_id.rpartition(":")
    if module.endswith(".py"):
        imported = module.removesuffix(".py").removeprefix("./").replace("/", ".")
        raise ValueError(f"{env_id}: a module is named as it is imported, without .py: {imported}:{name}")
    if module and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # where python itself looks for a module, and an installed command does not
    try:
        if is_atari(env_id):
            return make_atari(env_id, render_mode)
        options = mujoco.options_for(env_id, recorded=render_mode is not None)
        if render_mode is not None:  # an environment that nobody watches need not take the argument
            options["render_mode"] = render_mode
        # Gymnasium's checker looks at every step of a new environment: fine for a test, not for millions.
        return gymnasium.make(env_id, disable_env_checker=True, **options)
    except gymnasium.error.DependencyNotInstalled as error:
        extra = next((name for word, name in EXTRA_OF.items() if word in str(error)), None)
        hint = f" Install it with: pip install 'staq[{extra}]'" if extra else ""
        raise ModuleNotFoundError(f"{env_id} needs a package that is not installed ({error}).{hint}") from error
    except ModuleNotFoundError as error:
        if getattr(error.__cause__, "name", None) != module.partition(".")[0]:
            raise  # it is there, and needs another one
        raise ModuleNotFoundError(
            f"There is no module {module!r} of {env_id}, neither installed nor in {os.getcwd()}: run staq in the "
            "folder that holds it, or name that folder in PYTHONPATH."
        ) from error
    except gymnasium.error.Error as error:
        hint = ""
        if isinstance(error, gymnasium.error.UnregisteredEnv):
            own = f"{module} has to call gymnasium.register(id={name!r}, …) when it is imported."
            hint = f" {own if module else OF_ONES_OWN}"
        elif not module:  # a malformed name, such as a file's
            hint = f" {OF_ONES_OWN}"
        raise ValueError(f"The environment {env_id!r} cannot be made: {error}{hint}") from error
