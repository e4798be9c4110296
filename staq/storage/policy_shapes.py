"""Whether the weights in a file are those of the networks that it describes, found out without making any."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from stable_baselines3.common.torch_layers import CombinedExtractor, FlattenExtractor, NatureCNN

from staq.policy_improvement.stack import Stack

if TYPE_CHECKING:
    from staq.policies import StaQPolicy

EXTRACTORS: dict[str, Any] = {kind.__name__: kind for kind in (CombinedExtractor, FlattenExtractor, NatureCNN)}
"""Features extractors that a file can name: SB3's own, without code of anybody else."""
MOST, WIDEST = 1000, 10**9
"""Layers, critics or atoms, and units of a layer, that a file may ask for: far more than anybody has."""


def critics_of(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The critics' weights in the state of a policy, by their own names."""
    own = {name: w for name, w in state.items() if name.startswith("q_net.")}
    return {name.removeprefix("q_net.").replace("__", "."): w for name, w in own.items()}


def check_fits(kind: type[StaQPolicy], arguments: Mapping[str, Any], weights: Mapping[str, torch.Tensor]) -> None:
    """Compares the critics' weights [E, ...] with those that a policy would have.

    The policy is made on PyTorch's "meta" device, whose tensors have a shape and no memory.
    """
    if arguments.get("features_extractor_class") not in (None, *EXTRACTORS.values()):
        return  # a class of the reader's own, who knows its size
    lengths = {name: len(arguments.get(name) or ()) for name in ("net_arch", "conv_arch")}
    for name, size in {**lengths, **{name: arguments[name] for name in ("n_critics", "n_atoms")}}.items():
        if type(size) is not int or not 0 <= size <= MOST:
            raise ValueError(f"{name} of {size!r}: a file may ask for {MOST} at most.")
    for name in ("net_arch", "conv_arch"):
        largest = max(np.ravel(arguments.get(name) or [0]).tolist())
        if largest > WIDEST:
            raise ValueError(f"{name} of {largest}: a file may ask for {WIDEST:,} at most.")
    settings = Stack.Settings(memory_size=None)
    plain = {"lr_schedule": lambda _: 0.0, "optimizer_class": torch.optim.SGD, "optimizer_kwargs": None}
    with torch.device("meta"):
        policy = kind(**{**arguments, **plain, "make_improvement": partial(Stack, settings=settings)})
    expected = {name: (tuple(w.shape), w.dtype) for name, w in policy.q_net.weights.items()}
    found = {name: (tuple(w.shape), w.dtype) for name, w in weights.items()}
    if found != expected:
        name = min(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
        raise ValueError(
            f"The weights do not fit their own description: q_net.{name} is {_words(found.get(name))}, and "
            f"{_words(expected.get(name))} is described."
        )


def _words(weight: tuple[tuple[int, ...], torch.dtype] | None) -> str:
    return "nothing" if weight is None else f"{list(weight[0])} of {str(weight[1]).removeprefix('torch.')}"
