"""Spaces as JSON."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gymnasium import spaces

MOST_NUMBERS = 10_000_000
"""In an observation or an action of a file's space, and most actions to choose from."""


def describe_space(space: spaces.Space) -> dict[str, Any]:
    """A space as JSON."""
    if isinstance(space, spaces.Box):
        bounds = {"low": _bound(space.low), "high": _bound(space.high)}
        return {"type": "Box", "shape": list(space.shape), "dtype": str(space.dtype), **bounds}
    if isinstance(space, spaces.Discrete):
        return {"type": "Discrete", "n": int(space.n), "start": int(space.start)}
    if isinstance(space, spaces.MultiDiscrete):
        sizes = {"nvec": space.nvec.tolist(), "start": space.start.tolist()}
        return {"type": "MultiDiscrete", **sizes, "dtype": str(space.dtype)}
    if isinstance(space, spaces.MultiBinary):
        return {"type": "MultiBinary", "n": space.n if isinstance(space.n, int) else list(space.shape)}
    if isinstance(space, spaces.Dict):
        return {"type": "Dict", "spaces": {key: describe_space(inner) for key, inner in space.spaces.items()}}
    raise ValueError(f"A policy over {space} cannot be exported.")


def space_from(description: dict[str, Any]) -> spaces.Space:
    """The space that ``describe_space`` described."""
    arguments = dict(description)
    kind = arguments.pop("type")
    if kind == "Dict":
        return spaces.Dict({key: space_from(inner) for key, inner in arguments["spaces"].items()})
    _check_size(arguments)
    if kind == "Box":
        shape, dtype = tuple(arguments["shape"]), np.dtype(arguments["dtype"])
        low, high = (np.array(arguments[b], dtype=float).reshape(-1) for b in ("low", "high"))
        full = [np.broadcast_to(b if b.size > 1 else b[0], (math.prod(shape),)).reshape(shape) for b in (low, high)]
        return spaces.Box(full[0].astype(dtype), full[1].astype(dtype), dtype=dtype.type)
    kinds = {
        "Discrete": spaces.Discrete,
        "MultiDiscrete": spaces.MultiDiscrete,
        "MultiBinary": spaces.MultiBinary,
    }
    if kind not in kinds:
        raise ValueError(f"{kind!r} is no space of an exported policy.")
    if "dtype" in arguments:
        arguments["dtype"] = np.dtype(arguments["dtype"]).type
    return kinds[kind](**arguments)


def _check_size(arguments: dict[str, Any]) -> None:
    """Before anything of that size is allocated."""
    shape, n = arguments.get("shape", ()), arguments.get("n", 1)
    each = [*shape, *arguments.get("nvec", ()), *(n if isinstance(n, list) else [n])]
    whole = all(type(size) is int and 0 <= size <= MOST_NUMBERS for size in each)
    if not whole or math.prod(shape) > MOST_NUMBERS or (isinstance(n, list) and math.prod(n) > MOST_NUMBERS):
        sizes = {name: arguments[name] for name in ("shape", "n", "nvec") if name in arguments}
        raise ValueError(f"A space of {sizes}: a file's may have {MOST_NUMBERS:,} numbers at most.")


def _bound(values: np.ndarray) -> list[str | float]:
    """One number where all are the same; infinities as words, since JSON has none."""
    distinct = np.unique(values)
    flat = distinct if distinct.size == 1 else values.reshape(-1)
    return [float(v) if np.isfinite(v) else str(float(v)) for v in flat.astype(float)]
