"""Actions made of independent parts (App. E): q is a sum over the parts, the policy a product of softmaxes.

An array over actions has one entry per choice, part after part: [..., ΣK]. Since everything is additive over the
parts, the sums over that axis by which expectations, entropies and divergences are computed for a single part are
those of the joint policy as they stand. Only what is normalised or drawn has to go part by part. A Discrete space is
a single part, for which every function here is the plain operation and nothing more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from gymnasium import spaces


class Factors:
    """The number of choices of every part.

    :param sizes: K_d, one per part
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = tuple(int(size) for size in sizes)
        self.n_outputs = sum(self.sizes)
        self.log_count = sum(math.log(size) for size in self.sizes)
        """ln|A| of the joint space, which itself may be far too large to count."""
        self.single = len(self.sizes) == 1
        self.first = [sum(self.sizes[:d]) for d in range(len(self.sizes))]

    def each(self, function: Callable[..., torch.Tensor], *arrays: torch.Tensor, dim: int = -1) -> torch.Tensor:
        """A function of the last axis (or another), applied to every part; the results lie side by side again."""
        return function(*arrays) if self.single else torch.cat(self._of_parts(function, arrays, dim), dim=dim)

    def total(self, function: Callable[..., torch.Tensor], *arrays: torch.Tensor) -> torch.Tensor:
        """A function of the last axis, applied to every part and summed."""
        return function(*arrays) if self.single else torch.stack(self._of_parts(function, arrays)).sum(0)

    def _of_parts(
        self, function: Callable[..., torch.Tensor], arrays: tuple[torch.Tensor, ...], dim: int = -1
    ) -> list[torch.Tensor]:
        return [function(*parts) for parts in zip(*(array.split(self.sizes, dim) for array in arrays), strict=True)]

    def softmax(self, logits: torch.Tensor) -> torch.Tensor:
        return self.each(lambda part: part.softmax(-1), logits)

    def log_softmax(self, logits: torch.Tensor) -> torch.Tensor:
        return self.each(lambda part: part.log_softmax(-1), logits)

    def likeliest(self, logits: torch.Tensor) -> torch.Tensor:
        """The mode of the policy. [B, ΣK] → indices [B], or [B, D] of several parts"""
        return logits.argmax(-1) if self.single else self.each(lambda part: part.argmax(-1, keepdim=True), logits)

    def draw(self, probabilities: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """One choice per part. [B, ΣK] → [B], or [B, D] of several parts"""
        drawn = self.each(lambda part: torch.multinomial(part, 1, generator=generator), probabilities)
        return drawn.squeeze(-1) if self.single else drawn

    def outputs_of(self, indices: torch.Tensor) -> torch.Tensor:
        """Where action indices lie among all outputs. [..., B] → [..., 1, B], or [..., B, D] → [..., D, B]"""
        if self.single:
            return indices.unsqueeze(-2)
        return (indices + torch.tensor(self.first, device=indices.device)).transpose(-1, -2)


class ActionCodec:
    """A space of actions as factors, and the way back from indices to actions.

    :param space: Discrete, MultiDiscrete, MultiBinary, or a bounded Box
    :param n_atoms: K, choices per dimension of a Box, evenly spaced from bound to bound
    """

    def __init__(self, space: spaces.Space, n_atoms: int = 7) -> None:
        self.space = space
        self.atoms: np.ndarray | None = None  # [D, K]
        if isinstance(space, spaces.Discrete):
            sizes, self.start = [int(space.n)], np.asarray(space.start)
        elif isinstance(space, spaces.MultiDiscrete):
            sizes, self.start = space.nvec.flatten().tolist(), space.start.flatten()
        elif isinstance(space, spaces.MultiBinary):
            sizes, self.start = [2] * math.prod(space.shape), np.asarray(0)
        elif isinstance(space, spaces.Box):
            self.atoms = _evenly_spaced(space, n_atoms)
            sizes = [n_atoms] * len(self.atoms)
        else:
            raise ValueError(f"There is no way to enumerate the actions of {space}, part by part.")
        self.factors = Factors(sizes)

    def actions(self, indices: np.ndarray) -> np.ndarray:
        """Actions of the space. [B] or [B, D] → [B, ...]"""
        shape, dtype = self.space.shape, self.space.dtype
        assert shape is not None
        if self.atoms is None:
            return (indices + self.start).astype(dtype).reshape(-1, *shape)
        parts = indices.reshape(len(indices), -1)  # one dimension is a single part
        return self.atoms[np.arange(len(self.atoms)), parts].reshape(-1, *shape)

    def indices(self, actions: np.ndarray) -> np.ndarray:
        """The indices that actions of the space stand for, or are nearest to. [B, ...] → [B], or [B, D]"""
        parts = np.asarray(actions).reshape(-1, len(self.factors.sizes))
        found = parts - self.start if self.atoms is None else np.abs(self.atoms - parts[..., None]).argmin(-1)
        found = found.astype(np.int64)  # SB3's PPO says 0.0 and 1.0 in a MultiBinary space
        return found[:, 0] if self.factors.single else found

    def labels(self) -> list[list[str]]:
        """What every choice of every part stands for."""
        if self.atoms is not None:
            return [[f"{value:+.2g}" for value in row] for row in self.atoms]
        first = np.broadcast_to(self.start, len(self.factors.sizes))
        return [[str(start + i) for i in range(size)] for start, size in zip(first, self.factors.sizes, strict=True)]


def _evenly_spaced(space: spaces.Box, n_atoms: int) -> np.ndarray:
    """From bound to bound, symmetric where these are, and zero in the middle of an odd number then. [D, K]"""
    low, high = (bound.flatten().astype(np.float64)[:, None] for bound in (space.low, space.high))
    share = np.arange(n_atoms) / (n_atoms - 1)
    atoms: np.ndarray = (low * share[::-1] + high * share).astype(space.dtype)
    return atoms


def check_box(space: spaces.Box) -> None:
    """Raises for a Box that has no finite bounds to choose between."""
    if 0 in space.shape:
        raise ValueError(f"The action space {space} has no dimensions: there is nothing to choose.")
    if (space.low == space.high).all():
        raise ValueError(f"The action space {space} has a single action: there is nothing to learn.")
    if not np.issubdtype(space.dtype, np.floating):
        raise ValueError(f"{space} has whole numbers as actions: say so with a MultiDiscrete space.")
    with np.errstate(over="ignore"):
        span = space.high - space.low  # bounds at the end of the floats are none either
    for name, values in (("low", space.low), ("high", space.high), ("high − low", span)):
        if not np.isfinite(values).all():
            raise ValueError(
                f"The action space {space} is unbounded ({name} = {values.flatten().tolist()}): finite choices need "
                "finite bounds. Give it some, for example with gymnasium.wrappers.TransformAction(env, lambda a: a, "
                "Box(-1, 1, shape))."
            )
