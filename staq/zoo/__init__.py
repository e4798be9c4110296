"""RL Zoo with our algorithms: ``python -m staq.zoo train --algo staq --env CartPole-v1``.

The algorithms on our loop are registered twice, as "staq" with the paper's evaluation and as "staq-lambda" on
λ-returns, since RL Zoo knows hyperparameters by the algorithm's name. Those are our presets, in files beside this one.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from staq import registry
from staq.cli import presets
from staq.registry import ALGORITHMS, EVALUATIONS
from staq.search_space import suggested
from staq.storage.model_file import SCHEDULES

NAMES = {
    name if evaluation == "replay" else f"{name}-{evaluation}": (name, evaluation)
    for name in registry.ours()
    for evaluation in EVALUATIONS
}
"""RL Zoo's names of our algorithms, and what each is: the algorithm and its evaluation."""


def hyperparameter_file(name: str) -> Path:
    """The presets of one of ``NAMES``, as RL Zoo reads them."""
    return Path(__file__).parent / f"{NAMES[name][1]}.yml"


def register() -> None:
    """Adds our algorithms, and where to look for their hyperparameters, to RL Zoo."""
    try:
        from rl_zoo3.hyperparams_opt import HYPERPARAMS_CONVERTER, HYPERPARAMS_SAMPLER
        from rl_zoo3.utils import ALGOS, SimpleLinearSchedule
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"RL Zoo needs {error.name}: pip install 'staq[zoo]'") from error
    SCHEDULES[SimpleLinearSchedule.__name__] = SimpleLinearSchedule  # which "lin_1e-3" makes, and models then hold
    for name, (algo, evaluation) in NAMES.items():
        known = presets.defaults(algo, evaluation)
        ALGOS[name] = ALGORITHMS[algo].load()
        HYPERPARAMS_SAMPLER[name] = partial(_sampled, evaluation=evaluation, known=known)
        HYPERPARAMS_CONVERTER[name] = partial(_converted, evaluation=evaluation, known=known)


def _sampled(
    trial: Any, n_actions: int, n_envs: int, additional_args: dict[str, Any], *, evaluation: str, known: dict[str, Any]
) -> dict[str, Any]:
    """What RL Zoo asks for a trial, by position."""
    return suggested(trial, evaluation, known, n_envs)


def _converted(params: dict[str, Any], *, evaluation: str, known: dict[str, Any]) -> dict[str, Any]:
    """The hyperparameters of a trial in RL Zoo's storage, which does not say how many environments it had."""
    from optuna.trial import FixedTrial

    return suggested(FixedTrial(params), evaluation, known, n_envs=1)
