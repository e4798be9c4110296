"""Files that are whole or not there, and folders that one process at a time is at work in.

One of tensors and numbers starts with a digest of its content and appears under its name only when all of it is on the
disk. It holds data, never code: it loads with ``weights_only=True``.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy._core import multiarray

_DIGEST_BYTES = 16
_NUMPY_TYPES: list[Any] = [
    np.ndarray,
    np.dtype,
    multiarray._reconstruct,
    multiarray.scalar,
    *(type(np.dtype(code)) for code in np.typecodes["All"] if code != "O"),
    bytes,  # the content of an array without elements
]


class DamagedFile(ValueError):
    """A file is missing, incomplete or altered."""


def write_atomically(path: Path, content: dict[str, Any]) -> None:
    """Digest and content under ``path`` at once or not at all, and on the disk when this returns."""
    buffer = io.BytesIO()
    # A view would be saved with all of the tensor that it is a view of.
    torch.save({k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in content.items()}, buffer)
    payload = buffer.getbuffer()
    partial = path.with_name(f"{path.name}.partial")
    try:
        with partial.open("wb") as file:
            file.write(hashlib.blake2b(payload, digest_size=_DIGEST_BYTES).digest())
            file.write(payload)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        if os.name == "posix":  # the new name is on the disk when the folder is, which Windows does not open
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def verified_content(path: Path) -> memoryview:
    """The bytes of a file, if they are those that were written."""
    try:
        data = memoryview(path.read_bytes())
    except FileNotFoundError as error:
        raise DamagedFile(f"{path.name} is missing") from error
    digest, payload = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
    if hashlib.blake2b(payload, digest_size=_DIGEST_BYTES).digest() != digest:
        raise DamagedFile(f"{path.name} is damaged")
    return payload


def read(path: Path) -> dict[str, Any]:
    """A file's content: tensors, arrays, numbers and containers of them, never objects."""
    payload = verified_content(path)
    with torch.serialization.safe_globals(_NUMPY_TYPES):
        content: dict[str, Any] = torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
    return content


def replace_text(path: Path, text: str) -> None:
    """New text under a name, at once or not at all, whoever else is writing it."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())  # or a crash of the machine may leave the name with nothing in it
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def locked(path: Path, wait: bool) -> Iterator[None]:
    """Holds a file that no other process holds meanwhile, or waits for it; Windows has no such lock.

    However a process ends, it holds nothing any more.
    """
    with path.open("w") as lock:
        if os.name == "posix":
            import fcntl

            try:
                fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError as error:
                raise BlockingIOError(
                    f"Another process is at work with {path.parent}: wait for it, or stop it."
                ) from error
        yield
