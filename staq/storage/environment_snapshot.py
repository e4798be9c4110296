"""The state of an environment as plain data, so that a run can go on exactly where it was killed.

An environment is a graph of Python objects: wrappers, a game, random generators. ``snapshot`` walks it and
keeps numbers, arrays, containers of them and the states of generators; ``restore`` writes them back into an
environment made in the same way. Nothing is pickled, so a checkpoint can hold data only, never code. What is
not plain data is passed over, so ``restores_exactly`` finds out by trying: Box2D keeps its world to itself, MuJoCo
offers the whole of its own as arrays.
"""

from __future__ import annotations

import contextlib
import copy
from collections import deque
from typing import Any

import gymnasium
import numpy as np
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecEnvWrapper

from staq.actions import ActionCodec
from staq.envs.masks import METHOD

Plain = Any
_OBJECT, _GENERATOR, _RANDOM_STATE = "__object__", "__generator__", "__random_state__"
_MUJOCO = "__mujoco__"
_SKIPPED = object()
_CONSTANT = (gymnasium.Space, gymnasium.envs.registration.EnvSpec, type)
_SCALARS = (bool, int, float, str, bytes, type(None))
_BIT_GENERATORS = ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")
PROBE_STEPS = 60
# Grows with the run, and nothing that follows depends on it.
_MONITOR_HISTORY = ("episode_returns", "episode_lengths", "episode_times")


class CannotRestore(ValueError):
    """A snapshot does not fit the environment that it is restored into."""


def snapshot(root: object) -> Plain:
    """Everything reachable from ``root`` that is plain data; None if nothing is."""
    state = _captured(root, set())
    return None if state is _SKIPPED else state


def restore(root: object, state: Plain) -> None:
    """Writes a snapshot back into an object of the same make."""
    _restored(root, state, type(root).__name__)


def restores_exactly(env: VecEnv) -> bool:
    """Whether environments like those of ``env`` continue exactly from a snapshot."""
    return why_not_exactly(env) is None


def why_not_exactly(env: VecEnv) -> str | None:
    """Why environments like those of ``env`` do not continue exactly from a snapshot, if they do not.

    It is tried on two of their kind: one is brought into the middle of an episode, its snapshot is restored into the
    other, and both go on with the same actions. They must agree.
    """
    base = env
    while isinstance(base, VecEnvWrapper):
        base = base.venv
    if not isinstance(base, DummyVecEnv):
        return "they live in other processes"
    original: gymnasium.Env[Any, Any] = base.envs[0]
    while isinstance(original, Monitor):  # its state is plain data
        original = original.env
    try:
        with contextlib.ExitStack() as closing:
            one, other = _two_like(original, closing)
            alike = _continue_alike(one, other)
    except Exception as error:  # whatever a physics engine raises when half of its state is old: it means no
        return f"a trial of restoring their state failed ({type(error).__name__}: {error})"
    return None if alike else "a trial showed that not all of their state can be restored"


def _two_like(
    original: gymnasium.Env[Any, Any], closing: contextlib.ExitStack
) -> tuple[gymnasium.Env[Any, Any], gymnasium.Env[Any, Any]]:
    """Two new environments, or two copies of one that Gymnasium cannot make as it is."""
    if original.spec is not None:
        # The specification of a wrapped environment has its wrappers, or says that it cannot make them.
        with contextlib.suppress(Exception):
            one, other = (closing.enter_context(contextlib.closing(gymnasium.make(original.spec))) for _ in range(2))
            if _layers(original) <= _layers(one):
                return one, other
    return copy.deepcopy(original), copy.deepcopy(original)


def _layers(env: gymnasium.Env[Any, Any]) -> set[type]:
    """The kinds of wrappers around an environment."""
    layers = set()
    while isinstance(env, gymnasium.Wrapper):
        layers.add(type(env))
        env = env.env
    return layers


def _continue_alike(one: gymnasium.Env[Any, Any], other: gymnasium.Env[Any, Any]) -> bool:
    one.action_space.seed(0)
    one.reset(seed=0)
    other.reset(seed=1)
    for _ in range(5):
        _outcome(one, _any_action(one))
    restore(other, snapshot(one))
    for _ in range(5, PROBE_STEPS):
        action = _any_action(one)
        if not all(map(np.array_equal, _outcome(one, action), _outcome(other, action))):
            return False
    return True


def _any_action(env: gymnasium.Env[Any, Any]) -> Any:
    if not env.has_wrapper_attr(METHOD):
        return env.action_space.sample()
    codec = ActionCodec(env.action_space)
    parts = np.split(np.asarray(env.get_wrapper_attr(METHOD)(), dtype=bool), codec.factors.first[1:])
    drawn = np.array([env.action_space.np_random.choice(np.flatnonzero(part)) for part in parts])
    return codec.actions(drawn if codec.factors.single else drawn[None])[0]


def _outcome(env: gymnasium.Env[Any, Any], action: Any) -> list[np.ndarray]:
    """All that a step shows, and what the next episode begins with if one ends."""
    obs, reward, terminated, truncated, _ = env.step(action)
    found = [*_arrays(obs), np.asarray([reward, terminated, truncated], dtype=float)]
    return [*found, *_arrays(env.reset()[0])] if terminated or truncated else found


def _arrays(obs: Any) -> list[np.ndarray]:
    """The parts of an observation."""
    return [np.asarray(part) for part in (obs.values() if isinstance(obs, dict) else [obs])]


def _captured(value: Any, seen: set[int]) -> Plain:
    if type(value) in _SCALARS or isinstance(value, np.generic):
        return value
    if isinstance(value, np.ndarray):
        return value.copy() if value.dtype != object else _SKIPPED
    if isinstance(value, np.random.Generator):
        return {_GENERATOR: value.bit_generator.state}
    if isinstance(value, np.random.RandomState):
        return {_RANDOM_STATE: value.get_state(legacy=False)}
    if _is_mujoco_data(value):
        return {_MUJOCO: {"time": value.time, **{name: array.copy() for name, array in _mujoco_arrays(value).items()}}}
    if isinstance(value, dict):
        items = {key: _captured(item, seen) for key, item in value.items()}
        plain = all(type(key) in _SCALARS and item is not _SKIPPED for key, item in items.items())
        return items if plain else _SKIPPED
    if isinstance(value, (list, tuple, deque)):
        elements = [_captured(item, seen) for item in value]
        if any(item is _SKIPPED for item in elements):
            return _SKIPPED
        return tuple(elements) if isinstance(value, tuple) else elements
    if isinstance(value, _CONSTANT) or not hasattr(value, "__dict__") or callable(value) or id(value) in seen:
        return _SKIPPED
    seen.add(id(value))
    history = _MONITOR_HISTORY if isinstance(value, Monitor) else ()
    attributes = {name: _captured(item, seen) for name, item in vars(value).items() if name not in history}
    return {_OBJECT: {name: item for name, item in attributes.items() if item is not _SKIPPED}}


def _restored(current: Any, state: Plain, path: str) -> Any:
    """The value that belongs where ``current`` is: an object is changed in place, all else is made anew."""
    if isinstance(state, dict) and _OBJECT in state:
        if not hasattr(current, "__dict__"):
            raise CannotRestore(f"{path} was an object when the snapshot was taken and is {current!r} now")
        for name, item in state[_OBJECT].items():
            # Frozen dataclasses hold constants only, but say so by refusing assignment.
            if name.startswith("__"):
                raise CannotRestore(f"{path}.{name} is no attribute of an environment")
            object.__setattr__(current, name, _restored(getattr(current, name, None), item, f"{path}.{name}"))
        return current
    if isinstance(state, dict) and _GENERATOR in state:
        if not isinstance(current, np.random.Generator):  # made on first use
            kind = state[_GENERATOR]["bit_generator"]
            if kind not in _BIT_GENERATORS:
                raise CannotRestore(f"{path} was drawn from by {kind!r}, which is no generator of NumPy's")
            current = np.random.Generator(getattr(np.random, kind)())
        current.bit_generator.state = state[_GENERATOR]
        return current
    if isinstance(state, dict) and _RANDOM_STATE in state:
        # In place: MinAtar's sticky actions and its game share one generator.
        current = current if isinstance(current, np.random.RandomState) else np.random.RandomState()
        current.set_state(state[_RANDOM_STATE])
        return current
    if isinstance(state, dict) and _MUJOCO in state:
        _restore_mujoco(current, state[_MUJOCO], path)
        return current
    if isinstance(state, dict):
        current = current if isinstance(current, dict) else {}
        return {key: _restored(current.get(key), item, f"{path}[{key!r}]") for key, item in state.items()}
    if isinstance(state, (list, tuple)):
        return _restored_sequence(current, state, path)
    return state.copy() if isinstance(state, np.ndarray) else state


def _restored_sequence(current: Any, state: list[Any] | tuple[Any, ...], path: str) -> Any:
    same_length = isinstance(current, (list, tuple, deque)) and len(current) == len(state)
    previous = list(current) if same_length else [None] * len(state)
    items = [_restored(old, item, f"{path}[{i}]") for i, (old, item) in enumerate(zip(previous, state, strict=True))]
    if isinstance(current, deque):
        return deque(items, maxlen=current.maxlen)
    return tuple(items) if isinstance(state, tuple) else items


def _is_mujoco_data(value: Any) -> bool:
    return type(value).__name__ == "MjData" and type(value).__module__.startswith("mujoco")


def _mujoco_arrays(data: Any) -> dict[str, np.ndarray]:
    """Positions, velocities, what the solver starts from, and what was derived from them in the last step.

    A reward can be a difference to the derived state before the step, so that positions alone are not enough. Contacts
    and constraints, whose number varies, are found anew at the start of every step.
    """
    arrays = {name: getattr(data, name) for name in dir(data) if not name.startswith(("_", "efc_"))}
    return {name: array for name, array in arrays.items() if isinstance(array, np.ndarray) and array.dtype != object}


def _restore_mujoco(data: Any, state: dict[str, Any], path: str) -> None:
    if not _is_mujoco_data(data):
        raise CannotRestore(f"{path} was MuJoCo's data when the snapshot was taken and is {data!r} now")
    data.time = state["time"]
    for name, array in _mujoco_arrays(data).items():
        if name in state and state[name].shape == array.shape:
            array[...] = state[name]
