"""Values as JSON and tensors: numbers, text, arrays, containers of them, and nothing else unless a reader names it.

What JSON lacks is an object with one key that begins with "$": ``{"$tuple": [1, 2]}``. Tensors and arrays lie in
safetensors beside it and are called by name. Nothing here imports, calls or unpickles what a file says.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load as tensors_of
from safetensors.torch import save as bytes_of

Tensors = dict[str, torch.Tensor]
Json = Any
MOST_JSON = 100_000_000
"""Bytes of JSON in a file, at most; safetensors allows its header as many."""


class DamagedFile(ValueError):
    """A file is missing, incomplete, altered, or not what it should be."""


def refuse(value: Any, path: str) -> Json:
    """What is no plain data has no place in a file."""
    raise TypeError(f"{path} is a {type(value).__name__}, which is no plain data.")


def encoded(value: Any, tensors: Tensors, of_object: Callable[[Any, str], Json] = refuse, path: str = "") -> Json:
    """A value as JSON; its tensors and arrays go to ``tensors``.

    :param of_object: what to write for anything else
    """

    def inner(item: Any, key: object) -> Json:
        return encoded(item, tensors, of_object, f"{path}/{key}" if path else str(key))

    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"$float": repr(value)}
    if isinstance(value, torch.Tensor):
        return {"$tensor": _stored(value.detach().to("cpu", copy=True).contiguous(), path or "tensor", tensors)}
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        content = torch.from_numpy(np.frombuffer(value.tobytes(), np.uint8).copy())
        name = _stored(content, f"array-{len(tensors)}", tensors)
        return {"$array": [name, np.lib.format.dtype_to_descr(value.dtype), list(value.shape)]}
    if isinstance(value, np.generic) and not value.dtype.hasobject:
        return {"$scalar": [np.lib.format.dtype_to_descr(value.dtype), _text(value.tobytes())]}
    if isinstance(value, bytes):
        return {"$bytes": _text(value)}
    if type(value) is list:
        return [inner(item, i) for i, item in enumerate(value)]
    if isinstance(value, tuple):
        return {"$tuple": [inner(item, i) for i, item in enumerate(value)]}
    if isinstance(value, dict):
        if all(type(key) is str and not key.startswith("$") for key in value):
            return {key: inner(item, key) for key, item in value.items()}
        return {"$dict": [[inner(key, "key"), inner(item, key)] for key, item in value.items()]}
    return of_object(value, path)


def _stored(tensor: torch.Tensor, name: str, tensors: Tensors) -> str:
    while name in tensors:
        name += "'"
    tensors[name] = tensor
    return name


def decoded(tree: Json, tensors: Mapping[str, torch.Tensor], objects: Mapping[str, Callable[[Any], Any]]) -> Any:
    """The value that ``encoded`` wrote.

    :param objects: how to read what is no plain data, by the key that marks it
    """

    def inner(item: Json) -> Any:
        return decoded(item, tensors, objects)

    if isinstance(tree, list):
        return [inner(item) for item in tree]
    if not isinstance(tree, dict):
        return tree
    if not any(key.startswith("$") for key in tree):
        return {key: inner(item) for key, item in tree.items()}
    ((kind, content),) = tree.items()
    if kind == "$float":
        return {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}[content]
    if kind == "$tensor":
        return tensors[content]
    if kind == "$array":
        name, descr, shape = content
        return np.frombuffer(tensors[name].numpy(), _dtype(descr)).reshape(shape).copy()
    if kind == "$scalar":
        descr, text = content
        (scalar,) = np.frombuffer(base64.b64decode(text, validate=True), _dtype(descr))
        return scalar
    if kind == "$bytes":
        return base64.b64decode(content, validate=True)
    if kind == "$tuple":
        return tuple(inner(item) for item in content)
    if kind == "$dict":
        return {inner(key): inner(item) for key, item in content}
    if kind not in objects:
        raise ValueError(f"{kind!r} is nothing that this file may hold")
    return objects[kind](inner(content))


def _dtype(descr: Any) -> np.dtype[Any]:
    """Of plain data only: an array of objects would be one of pointers."""
    # A structure's fields were tuples before they were JSON.
    fields = [tuple(field) for field in descr] if isinstance(descr, list) else descr
    dtype: np.dtype[Any] = np.lib.format.descr_to_dtype(fields)
    if dtype.hasobject:
        raise ValueError(f"an array of {dtype} is no plain data")
    return dtype


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def parsed(text: str | bytes, what: str) -> Json:
    """JSON from a file, however it may be made."""
    if len(text) > MOST_JSON:
        raise DamagedFile(f"{what} is {len(text):,} bytes of JSON: at most {MOST_JSON:,} are read")
    try:
        return json.loads(text)
    except RecursionError as error:
        raise DamagedFile(f"{what} is nested too deeply") from error
    except ValueError as error:
        raise DamagedFile(f"{what} is damaged: {error}") from error


def header_of(data: bytes, what: str) -> dict[str, Any]:
    """The header of safetensors, whose length is checked before anything is made of it."""
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or not 2 <= length <= min(len(data) - 8, MOST_JSON):
        raise DamagedFile(f"{what} is damaged: a header of {length:,} bytes in a file of {len(data):,}")
    header = parsed(data[8 : 8 + length], what)
    if not isinstance(header, dict):
        raise DamagedFile(f"{what} is damaged: its header is no object")
    return header


def safetensors_of(tensors: Tensors, metadata: dict[str, str] | None = None) -> bytes:
    """Tensors as safetensors."""
    data: bytes = bytes_of(tensors, metadata)
    return data


def read_safetensors(data: bytes, what: str) -> Tensors:
    """The tensors of safetensors, all numbers of which are finite."""
    header_of(data, what)
    try:
        tensors: Tensors = tensors_of(data)
    except (SafetensorError, KeyError, AssertionError, RuntimeError, ValueError) as error:
        raise DamagedFile(f"{what} is damaged: {error}") from error
    check_finite(tensors, what)
    return tensors


def check_finite(tensors: Tensors, what: str) -> None:
    """Names the first tensor that training, or whoever made the file, has spoiled."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise DamagedFile(f"{what} holds NaN or infinity in {name}: use an earlier file")
