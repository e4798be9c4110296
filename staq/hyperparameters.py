"""What an algorithm's arguments must be, and what it says when they are not."""

from __future__ import annotations

import argparse
import difflib
import inspect
import math
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import gymnasium
import numpy as np
from gymnasium import spaces
from stable_baselines3.common.type_aliases import GymEnv

from staq.actions.factored import Coding, check_box

T = TypeVar("T")
NO_MEANING_HERE = {
    "learning_starts": "the first policy is uniform and training starts after the first iteration",
    "tau": "target networks are copied whole, every target_update_interval gradient steps",
    "train_freq": "the policy is fixed for policy_update_interval environment steps",
    "replay_buffer_class": "the replay also holds the policy's accumulated logits",
    "replay_buffer_kwargs": "the replay also holds the policy's accumulated logits",
    "optimize_memory_usage": "next states are stored with their logits",
    "n_steps": "targets look one step ahead",
    "exploration_fraction": "the policy explores by its entropy, and by a constant epsilon",
    "exploration_initial_eps": "the policy explores by its entropy, and by a constant epsilon",
    "exploration_final_eps": "the policy explores by its entropy, and by a constant epsilon",
    "max_grad_norm": "gradients are not clipped",
}
"""Arguments of SB3's DQN that are accepted and ignored, and why."""


def _number(value: Any) -> bool:
    return isinstance(value, (int, float, np.number)) and not isinstance(value, bool) and math.isfinite(value)


def _positive(value: Any) -> bool:
    return _number(value) and value > 0


def _at_least(least: int) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, (int, np.integer)) and not isinstance(value, bool) and int(value) >= least


def _one_of(*words: str) -> tuple[Callable[[Any], bool], str]:
    return (lambda value: value in words), " or ".join(map(repr, words))


_ENTROPY = "a positive number: without entropy the weights of Eq. 2 diverge"
REQUIREMENTS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "learning_rate": (lambda v: callable(v) or _positive(v), "a positive number or a schedule"),
    "buffer_size": (_at_least(1), "a whole number of at least 1"),
    "batch_size": (_at_least(1), "a whole number of at least 1"),
    "gamma": (lambda v: _number(v) and 0 <= v <= 1, "a number between 0 and 1"),
    "memory_size": (lambda v: v is None or _at_least(1)(v), "a whole number of at least 1, or None to keep all"),
    "kl_weight": (lambda v: _number(v) and v >= 0, "a number of at least 0"),
    "ent_weight_init": (_positive, _ENTROPY),
    "ent_weight_final": (_positive, _ENTROPY),
    "ent_decay_steps": (_at_least(0), "a whole number of at least 0"),
    "reward_scale": (_positive, "a positive number"),
    "epsilon": (lambda v: _number(v) and 0 <= v <= 1, "a number between 0 and 1"),
    "behaviour": _one_of("softmax", "sticky"),
    "sticky_rate": (_positive, "a positive number"),
    "n_critics": (_at_least(1), "a whole number of at least 1"),
    "target_action": _one_of("expected", "sampled"),
    "target_reduce": _one_of("mean", "min"),
    "weighting": _one_of("current", "exact"),
    "actor_steps": (_at_least(1), "a whole number of at least 1"),
    "max_kl": (_positive, "a positive number"),
    "cg_steps": (_at_least(1), "a whole number of at least 1"),
    "cg_damping": (lambda v: _number(v) and v >= 0, "a number of at least 0"),
    "line_search_steps": (_at_least(1), "a whole number of at least 1"),
    "policy_update_interval": (_at_least(1), "a whole number of at least 1"),
    "gradient_steps": (_at_least(-1), "a whole number of at least 0, or -1 for one per environment step"),
    "target_update_interval": (_at_least(1), "a whole number of at least 1"),
    "n_atoms": (_at_least(2), "a whole number of at least 2"),
    # of the rivals
    "anneal_steps": (_at_least(1), "a whole number of at least 1"),
    "exploration_steps": (_at_least(1), "a whole number of at least 1"),
    "exploration_fraction": (lambda v: _number(v) and 0 < v <= 1, "a number above 0 and at most 1"),
    "exploration_initial_eps": (lambda v: _number(v) and 0 <= v <= 1, "a number between 0 and 1"),
    "exploration_final_eps": (lambda v: _number(v) and 0 <= v <= 1, "a number between 0 and 1"),
    "temperature": (_positive, "a positive number"),
    "scaling": (_number, "a number"),
    "clip": (lambda v: _number(v) and v <= 0, "a number of at most 0"),
    "n_steps": (_at_least(1), "a whole number of at least 1"),
    "n_epochs": (_at_least(1), "a whole number of at least 1"),
    "clip_range": (lambda v: callable(v) or _positive(v), "a positive number or a schedule"),
    "ent_coef": (_number, "a number"),
    "vf_coef": (_number, "a number"),
    "gae_lambda": (lambda v: _number(v) and 0 <= v <= 1, "a number between 0 and 1"),
    "target_kl": (lambda v: v is None or _positive(v), "a positive number"),
}


LARGEST_RATIO = 1e12
"""Of η to the entropy weight: beyond it 1 − β is lost in rounding."""


def check_each(values: Mapping[str, Any]) -> None:
    """Raises for the first value that cannot work, with its name and what it must be."""
    for name, (holds, requirement) in REQUIREMENTS.items():
        if name in values and not holds(values[name]):
            raise ValueError(f"{name}={values[name]!r}: it must be {requirement}.")


def check(values: Mapping[str, Any], n_envs: int) -> None:
    """The same for the arguments of an algorithm of ours, and whether they fit together."""
    check_each(values)
    if values["buffer_size"] < n_envs:
        raise ValueError(f"buffer_size={values['buffer_size']} is too small for a step of {n_envs} environments.")
    entropy = min(values["ent_weight_init"], values["ent_weight_final"])
    if values["kl_weight"] > LARGEST_RATIO * entropy:
        raise ValueError(
            f"kl_weight={values['kl_weight']:g} is more than {LARGEST_RATIO:g} times the entropy weight {entropy:g}: β "
            "rounds to 1, and the weights of Eq. 2 diverge. Lower the one or raise the other."
        )
    interval = values["policy_update_interval"]
    if interval % n_envs:
        below = interval - interval % n_envs
        raise ValueError(
            f"policy_update_interval={interval} is not a multiple of the {n_envs} environments: use "
            f"{f'{below} or ' if below else ''}{below + n_envs}, or a number of environments that divides {interval}."
        )


def ignore_with_a_warning(algorithm: type, arguments: Iterable[str]) -> None:
    """Accepts what only DQN has a use for; an unknown argument is an error that names the nearest."""
    for name in arguments:
        if name not in NO_MEANING_HERE:
            known = [*inspect.signature(algorithm).parameters, *NO_MEANING_HERE]
            raise TypeError(f"{algorithm.__name__} has no argument {name!r}.{nearest(name, known)}")
    if arguments:
        reasons = "; ".join(f"{name} ({NO_MEANING_HERE[name]})" for name in arguments)
        warnings.warn(
            f"These arguments of DQN have no meaning for {algorithm.__name__} and are ignored: {reasons}.", stacklevel=4
        )


def merge_signature(algorithm: type[T]) -> type[T]:
    """Shows the keyword arguments that a subclass adds among those that it inherits and hands on."""
    if "__init__" not in vars(algorithm):
        return algorithm
    init: Any = algorithm.__init__
    parent: Any = algorithm.__mro__[1]
    own = [p for p in inspect.signature(init).parameters.values() if p.kind is p.KEYWORD_ONLY]
    inherited = inspect.signature(parent.__init__)
    shared = [p for p in inherited.parameters.values() if p.name not in {parameter.name for parameter in own}]
    rest = [p for p in shared if p.kind is p.VAR_KEYWORD]
    named = [p for p in shared if p.kind is not p.VAR_KEYWORD]
    init.__signature__ = inherited.replace(parameters=[*named, *own, *rest])
    return algorithm


# Of an algorithm's arguments, those that say where and how loudly it runs rather than what it computes.
_NOT_HYPERPARAMETERS = {"stats_window_size", "tensorboard_log", "verbose", "seed", "device", "_init_setup_model"}


def hyperparameters(algorithm: type) -> dict[str, Any]:
    """An algorithm's hyperparameters and their defaults."""
    parameters = inspect.signature(algorithm).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not p.empty and p.name not in _NOT_HYPERPARAMETERS}


def meanings_of_arguments(algorithm: type) -> dict[str, str]:
    """What the documentation of a class and of those above it says of their arguments."""
    found: dict[str, str] = {}
    for parent in algorithm.__mro__:
        if parent.__module__.startswith("staq."):
            for name, text in re.findall(
                r":param (\w+): (.+?)(?=\n *:param|\n *\n|\Z)", parent.__doc__ or "", re.DOTALL
            ):
                found.setdefault(name, " ".join(text.replace("`", "").split()))
    return found


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint for a misspelt word, if anything comes near it."""
    matches = difflib.get_close_matches(word, list(known), 1, cutoff=0.4)
    return f" Did you mean {matches[0]!r}?" if matches else ""


def checked_env(env: GymEnv | str | None) -> GymEnv | None:
    """Says what StaQ cannot do with an environment before SB3 fails on it with an assertion."""
    if env is None:
        return None
    if isinstance(env, str):
        env = gymnasium.make(env)
    actions, observations = env.action_space, env.observation_space
    if not isinstance(actions, (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary, spaces.Box)):
        raise ValueError(
            f"There is no support for actions of {actions}: offer a Discrete, MultiDiscrete, MultiBinary or Box space."
        )
    if isinstance(actions, spaces.Box):
        check_box(actions)
    if isinstance(actions, spaces.MultiBinary) and len(actions.shape) > 1:
        raise ValueError(
            f"SB3 has no support for {actions} of several dimensions: offer MultiBinary({math.prod(actions.shape)})."
        )
    if Coding(actions).factors.log_count == 0:
        raise ValueError(f"{actions} has a single action: there is nothing to learn, and ln|A| = 0 scales no entropy.")
    if isinstance(observations, (spaces.Dict, spaces.Tuple)):
        raise ValueError(
            f"There is no support for {type(observations).__name__} observations ({observations}): flatten them with "
            "gymnasium.wrappers.FlattenObservation."
        )
    return env


def whole_number(text: str) -> int:
    """5000, 5_000 or 5e3."""
    number = float(text)
    if not number.is_integer() or number <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return int(number)


def positive(text: str) -> float:
    """A number above 0."""
    number = float(text)
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return number


def checked_device(name: str) -> str:
    """A device that there is; "auto" is the GPU where there is one."""
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise ValueError(f"--device {name}: it must be auto, cpu or cuda.")
    if torch.device(name).type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"--device {name}: PyTorch finds no GPU on this machine; use cpu or auto.")
    return name
