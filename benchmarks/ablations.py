"""The library with one optimisation switched off: what each of them earns.

``python -m benchmarks.scenario ENV --without NAME`` times a scenario so. What is computed stays the same, up to
rounding; what earns less than 5 % in both environments is not worth a reader's minute, and goes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import torch

from staq.networks import gradients, kernels
from staq.networks.architecture import OUTPUT_BIAS, OUTPUT_WEIGHT, output
from staq.policy_evaluation import replay_regression
from staq.policy_improvement import q_stack
from staq.policy_improvement.improvement import mean_centred


def _no_closed_form() -> None:
    def by_autograd(ensemble: Any, batch_size: int) -> gradients.Autograd:
        return gradients.Autograd(ensemble)

    _replace(replay_regression, "backpropagation", by_autograd)


def _no_kernel(name: str) -> Callable[[], None]:
    load = kernels.load
    return lambda: _replace(kernels, "load", lambda wanted: None if wanted == name else load(wanted))


def _no_folded_outputs() -> None:
    """Every network's own q, centred and weighted, instead of output layers into which both are multiplied."""

    def accumulated_chunk(stack: q_stack.QStack, obs: torch.Tensor) -> torch.Tensor:
        architecture = stack.architecture
        inputs = architecture.inputs_of_many(obs)
        total = torch.zeros(len(obs), architecture.n_actions, dtype=torch.float64)
        weights = iter(stack.relative_weights)  # a full ring that has not wrapped since: slots are in order
        for filled, _ in stack.folded()[1]:
            q = output(filled[OUTPUT_WEIGHT], filled[OUTPUT_BIAS], architecture.hidden_of_many(filled, inputs))
            for ensemble in q.split(stack.n_critics):
                total += next(weights) * mean_centred(ensemble, architecture.factors)
        return total

    _replace(q_stack.QStack, "_accumulated_chunk", accumulated_chunk)


def _replace(owner: Any, name: str, value: Any) -> None:
    mock.patch.object(owner, name, value).start()  # for the rest of this process


ABLATIONS: dict[str, Callable[[], None]] = {
    "closed-form gradients": _no_closed_form,
    "the boards kernel": _no_kernel("boards"),
    "the dense kernel": _no_kernel("dense"),
    "folded output layers": _no_folded_outputs,
}
