"""Hyperparameters: a typed, documented dataclass per group, from which checks, help texts and a run's identity follow.

A group is a frozen dataclass whose fields are made by ``setting``:

    @dataclass(frozen=True)
    class Settings(Group):
        actor_steps: int = setting(5000, "gradient steps of the actor per iteration", at_least(1))

An algorithm's hyperparameters are the fields of three groups: the loop's, its policy evaluation's and its policy
improvement's. They are plain attributes of a model, as in stable-baselines3, and may be changed between two iterations.
"""

from __future__ import annotations

import difflib
import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, Literal, NamedTuple, Self

import numpy as np


class Requirement(NamedTuple):
    """What a value must be: as a test, and in words."""

    holds: Callable[[Any], bool]
    words: str


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float, np.number)) and not isinstance(value, bool) and math.isfinite(value)


def at_least(least: int, *, or_none: str = "", words: str = "") -> Requirement:
    """A whole number; ``or_none`` says what None means, if it is allowed."""

    def holds(value: Any) -> bool:
        if value is None:
            return bool(or_none)
        return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and int(value) >= least

    return Requirement(holds, words or f"a whole number of at least {least}{f', or None {or_none}' if or_none else ''}")


def one_of(*words: str) -> Requirement:
    return Requirement(lambda value: value in words, " or ".join(map(repr, words)))


NUMBER = Requirement(is_number, "a number")
POSITIVE = Requirement(lambda v: is_number(v) and v > 0, "a positive number")
NOT_NEGATIVE = Requirement(lambda v: is_number(v) and v >= 0, "a number of at least 0")
FRACTION = Requirement(lambda v: is_number(v) and 0 <= v <= 1, "a number between 0 and 1")
STEPS = Requirement(lambda v: is_number(v) and v >= 0 and v == int(v), "a whole number of at least 0")
SEED = Requirement(
    lambda v: v is None or (at_least(0).holds(v) and v < 2**32),
    "a whole number from 0 to 2³² − 1, or None for a random one",
)
# 0 too: RL Zoo loads models that are only to play with custom_objects={"learning_rate": 0.0}.
RATE = Requirement(lambda v: callable(v) or NOT_NEGATIVE.holds(v), "a number of at least 0 or a schedule")


def setting(default: Any, help: str, must_be: Requirement) -> Any:
    """A field of a group."""
    return field(default=default, metadata={"help": help, "must_be": must_be})


@dataclass(frozen=True)
class Group:
    """Hyperparameters that belong together. A value that cannot work is named when a group is made."""

    def __post_init__(self) -> None:
        for each in fields(self):
            check(each.name, getattr(self, each.name), each.metadata["must_be"])

    @classmethod
    def of(cls, model: object) -> Self:
        """The group as a model has it now."""
        return cls(**{each.name: getattr(model, each.name) for each in fields(cls)})


LARGEST_SCALE = 1e9
"""Of rewards: the loss squares the sum of many, and float32 ends at 1e38."""
SCALE = Requirement(lambda v: POSITIVE.holds(v) and v <= LARGEST_SCALE, f"a positive number up to {LARGEST_SCALE:g}")
ENTROPY = Requirement(POSITIVE.holds, "a positive number: without entropy the weights of Eq. 2 diverge")
LARGEST_RATIO = 1e12
"""Of η to the entropy weight: beyond it 1 − β is lost in rounding."""


@dataclass(frozen=True)
class Shared(Group):
    """The loop's own hyperparameters, which every evaluation and every improvement shares (the paper's Table 2)."""

    learning_rate: float | Callable[[float], float] = setting(
        1e-4, "the optimiser's, a number or an SB3 schedule", RATE
    )
    batch_size: int = setting(256, "states per gradient step, of the critics and of an actor", at_least(1))
    gamma: float = setting(0.99, "discount factor", FRACTION)
    kl_weight: float = setting(20.0, "η, weight of the KL divergence to the previous policy", NOT_NEGATIVE)
    ent_weight_init: float = setting(
        2.0, "entropy weight at the start, scaled: τ of the paper is this over ln|A|", ENTROPY
    )
    ent_weight_final: float = setting(0.4, "scaled entropy weight after ent_decay_steps", ENTROPY)
    ent_decay_steps: int = setting(500_000, "environment steps over which the entropy weight is annealed", at_least(0))
    reward_scale: float = setting(10.0, "factor on rewards in the targets; returns are reported unscaled", SCALE)
    epsilon: float = setting(0.05, "probability of a uniform action while collecting", FRACTION)
    behaviour: Literal["softmax", "sticky"] = setting(
        "softmax", '"softmax", or "sticky" to hold each action for about sticky_rate steps', one_of("softmax", "sticky")
    )
    sticky_rate: float = setting(10.0, "λ, mean of the Poisson distribution of how long an action is held", POSITIVE)
    masks: Literal["auto", "required", "off"] = setting(
        "auto",
        'action masks: "auto" uses those that the environments offer, "required" insists on them, "off" ignores them',
        one_of("auto", "required", "off"),
    )
    n_critics: int = setting(2, "Q-networks in the ensemble", at_least(1))
    policy_update_interval: int = setting(
        5000, "environment steps per iteration; a multiple of the number of environments", at_least(1)
    )
    n_atoms: int = setting(7, "choices per dimension of a continuous (Box) action space, evenly spaced", at_least(2))

    def check_together(self, n_envs: int) -> None:
        """Raises where values that are fine by themselves do not fit together."""
        entropy = min(self.ent_weight_init, self.ent_weight_final)
        if self.kl_weight > LARGEST_RATIO * entropy:
            raise ValueError(
                f"kl_weight={self.kl_weight:g} is more than {LARGEST_RATIO:g} times the entropy weight {entropy:g}: β "
                "rounds to 1, and the weights of Eq. 2 diverge. Lower the one or raise the other."
            )
        interval = self.policy_update_interval
        if interval % n_envs:
            below = interval - interval % n_envs
            multiples = f"{f'{below} or ' if below else ''}{below + n_envs}"
            raise ValueError(
                f"policy_update_interval={interval} is not a multiple of the {n_envs} environments: use {multiples}, "
                f"or a number of environments that divides {interval}."
            )


def check(name: str, value: Any, must_be: Requirement) -> None:
    if not must_be.holds(value):
        raise ValueError(f"{name}={value!r}: it must be {must_be.words}.")


def check_device(name: Any) -> None:
    """Raises where PyTorch would fail without a word on the remedy, or SB3 take a CPU for a GPU that is not there."""
    import torch  # only here: ``staq --help`` needs no PyTorch

    if name == "auto":
        return
    try:
        kind = torch.device(name).type
    except (RuntimeError, TypeError):
        raise ValueError(f"device={name!r}: it must be auto, cpu or cuda.") from None
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device={str(name)!r}: PyTorch finds no GPU on this machine; use cpu or auto.")


def settings_of(groups: Iterable[type[Group]]) -> dict[str, Field[Any]]:
    """Every hyperparameter of some groups, in their order."""
    return {each.name: each for group in groups for each in fields(group)}


def defaults_of(groups: Iterable[type[Group]], instead: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """:param instead: what a policy evaluation has instead of some of them, where that is allowed"""
    found, instead = settings_of(groups), instead or {}
    assert all(each.default is not MISSING for each in found.values())
    allowed = {
        name for name, value in instead.items() if name in found and found[name].metadata["must_be"].holds(value)
    }
    return {name: instead[name] if name in allowed else each.default for name, each in found.items()}


def described(groups: Sequence[type[Group]]) -> str:
    """The hyperparameters as a class's documentation lists them."""
    lines = [f":param {name}: {each.metadata['help']} ({each.default!r})" for name, each in settings_of(groups).items()]
    return "\n    ".join(lines)


NO_MEANING_HERE = {
    "learning_starts": "the first policy is uniform and training starts after the first iteration",
    "tau": "target networks are copied whole, every target_update_interval gradient steps",
    "train_freq": "the policy is fixed for policy_update_interval environment steps, after which gradient_steps follow",
    "replay_buffer_class": "the replay also holds the policy's accumulated logits",
    "replay_buffer_kwargs": "the replay also holds the policy's accumulated logits",
    "optimize_memory_usage": "next states are stored with their logits",
    "n_steps": "targets look one step ahead; those of evaluation='lambda' further",
    "exploration_fraction": "the policy explores by its entropy, and by a constant epsilon",
    "exploration_initial_eps": "the policy explores by its entropy, and by a constant epsilon",
    "exploration_final_eps": "the policy explores by its entropy, and by a constant epsilon",
    "max_grad_norm": "gradients are not clipped; evaluation='lambda' clips them",
}
"""Arguments of SB3's DQN that are accepted and ignored, and why."""
HAPPENS_ANYWAY: dict[str, Callable[[Any, Mapping[str, Any]], bool]] = {
    "learning_starts": lambda value, all_: is_number(value) and value <= all_["policy_update_interval"],
    "tau": lambda value, _: value == 1,
    "replay_buffer_class": lambda value, _: value is None,
    "replay_buffer_kwargs": lambda value, _: not value or value == {"handle_timeout_termination": True},
    "optimize_memory_usage": lambda value, _: not value,
    "n_steps": lambda value, _: value == 1,
}
"""Which of their values ask for what happens anyway, given all hyperparameters: they are worth no warning."""


def resolved(
    algorithm: str, known: Mapping[str, Any], given: Mapping[str, Any], elsewhere: Mapping[str, str]
) -> dict[str, Any]:
    """Every hyperparameter: as given, or its default.

    What only DQN has a use for is ignored with a warning; an unknown name is an error that names the nearest.

    :param known: every hyperparameter's default
    :param elsewhere: what belongs to another policy evaluation, and to which
    """
    for name in given:
        if name in elsewhere and name not in known and name not in NO_MEANING_HERE:
            raise TypeError(not_here(name, elsewhere[name]))
    unknown = [name for name in given if name not in known]
    for name in unknown:
        if name not in NO_MEANING_HERE:
            hint = only_of(name) or nearest(name, [*known, *NO_MEANING_HERE])
            raise TypeError(f"{algorithm} has no argument {name!r}.{hint}")
    values = {**known, **{name: value for name, value in given.items() if name in known}}
    if any(base.__name__ == "HerReplayBuffer" for base in getattr(given.get("replay_buffer_class"), "__mro__", ())):
        raise ValueError(
            f"replay_buffer_class=HerReplayBuffer: {algorithm} has no hindsight replay, without which few goals are "
            "ever reached. Shape the reward, or use stable-baselines3's own DQN."
        )
    ignored = [name for name in unknown if name not in HAPPENS_ANYWAY or not HAPPENS_ANYWAY[name](given[name], values)]
    if ignored:
        reasons = "; ".join(f"{name} ({NO_MEANING_HERE[name]})" for name in ignored)
        warnings.warn(
            f"These arguments of DQN have no meaning for {algorithm} and are ignored: {reasons}.", stacklevel=4
        )
    return values


def not_here(name: str, evaluation: str) -> str:
    return f"{name!r} belongs to evaluation={evaluation!r}: leave it out, or evaluate so."


def only_of(name: str) -> str:
    """A hint at whose hyperparameter it is, if another algorithm has one of that name."""
    from staq.registry import algorithms_with

    owners = algorithms_with(name)
    return f" It belongs to {', '.join(owners)}." if owners else ""


def other_defaults(evaluation: str, values: Mapping[str, Any]) -> str:
    """What a policy evaluation has come with, for who looks on."""
    lines = [f"  {name:24} {value}" for name, value in values.items()]
    return "\n".join([f"Defaults of evaluation={evaluation!r}:", *lines])


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint for a misspelt word, if anything comes near it."""
    matches = difflib.get_close_matches(word, list(known), 1, cutoff=0.4)
    return f" Did you mean {matches[0]!r}?" if matches else ""


def chosen(kind: str, name: str, known: Mapping[str, Any]) -> Any:
    """What a name stands for; an unknown one is an error that names the nearest."""
    if name not in known:
        raise ValueError(f"There is no {kind} {name!r}.{nearest(str(name), known)} There are: {', '.join(known)}.")
    return known[name]
