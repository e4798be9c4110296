"""The one list of algorithms and of policy evaluations: command line, titles, presets and public names follow from it.

A new policy update or evaluation is a file of its own and a line here. Classes are named, not imported, so that
``staq.tabular`` and ``staq --help`` need no PyTorch.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class Algorithm:
    """One record: an algorithm of ours, or a baseline of stable-baselines3."""

    name: str
    """On the command line."""
    title: str
    """In plots and reports."""
    home: str
    """"module:Class"."""
    presets: str = ""
    """What the names of its presets begin with; ours share theirs."""
    extra: str = ""
    """The extra of this package that installs it, if it is not there anyway."""

    @property
    def ours(self) -> bool:
        """Whether it is a policy mirror descent on our loop."""
        return not self.presets

    @property
    def class_name(self) -> str:
        return self.home.split(":")[1]

    def load(self) -> Any:
        """The class itself."""
        return _loaded(self.home, self.title, self.extra)


def _loaded(home: str, title: str, extra: str = "") -> Any:
    module, name = home.split(":")
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        hint = f": pip install 'staq[{extra}]'" if extra else ""
        raise ModuleNotFoundError(f"{title} needs {error.name}, which is not installed{hint}") from error


ALGORITHMS: dict[str, Algorithm] = {
    record.name: record
    for record in (
        Algorithm("staq", "StaQ", "staq.algorithms:StaQ"),
        Algorithm("exact-pmd", "exact PMD", "staq.algorithms:ExactPMD"),
        Algorithm("ac-nokl", "AC-NoKL (SAC)", "staq.algorithms:ACNoKL"),
        Algorithm("ac-mproj", "AC-MProj (ECPO)", "staq.algorithms:ACMProj"),
        Algorithm("ac-directopt", "AC-DirectOpt (MDPO)", "staq.algorithms:ACDirectOpt"),
        Algorithm("natgrad", "NatGrad + LS (TRPO)", "staq.algorithms:NatGrad"),
        Algorithm("dqn", "DQN", "stable_baselines3:DQN", presets="dqn"),
        Algorithm("m-dqn", "M-DQN", "staq.baselines.munchausen_dqn:MDQN", presets="m-dqn"),
        Algorithm("pqn", "PQN", "staq.baselines.pqn:PQN", presets="pqn"),
        Algorithm("ppo", "PPO", "stable_baselines3:PPO", presets="ppo"),
        Algorithm("trpo", "TRPO", "sb3_contrib:TRPO", presets="trpo", extra="baselines"),
    )
}
"""By the names of the command line."""

EVALUATIONS: dict[str, str] = {
    "replay": "staq.policy_evaluation.replay_regression:ReplayRegression",
    "lambda": "staq.policy_evaluation.lambda_returns:LambdaReturns",
}
"""Policy evaluations by name, as "module:Class"."""


def load_evaluation(name: str) -> Any:
    """The class of a policy evaluation; an unknown name is an error that names the nearest."""
    from staq.hyperparameters import chosen

    return _loaded(chosen("evaluation", name, EVALUATIONS), name)


def settings_elsewhere(name: str) -> dict[str, str]:
    """Hyperparameters that only other policy evaluations have, and which."""
    from staq.hyperparameters import settings_of

    return {
        each: other for other in EVALUATIONS if other != name for each in settings_of([load_evaluation(other).Settings])
    }


def algorithms_with(setting: str) -> list[str]:
    """Names of the algorithms on our loop that have a hyperparameter of their own."""
    from staq.hyperparameters import settings_of

    return [name for name in ours() if setting in settings_of([ALGORITHMS[name].load().improvement.Settings])]


def ours() -> list[str]:
    """Names of the algorithms on our loop."""
    return [name for name, record in ALGORITHMS.items() if record.ours]


def baselines() -> list[str]:
    return [name for name, record in ALGORITHMS.items() if not record.ours]


def with_presets(name: str) -> list[str]:
    """The algorithms that a preset of this name is for."""
    return [algo for algo in baselines() if name.startswith(f"{ALGORITHMS[algo].presets}-")] or ours()
