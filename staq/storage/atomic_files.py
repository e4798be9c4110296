"""Files that are whole or not there, and folders that one process at a time is at work in.

One of tensors and numbers is safetensors whose metadata has the rest as JSON (``plain_data``), with a digest of the
file. It appears under its name only when all of it is on the disk, and holds data, never code.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from staq.storage.plain_data import (
    DamagedFile,
    Tensors,
    decoded,
    encoded,
    header_of,
    parsed,
    read_safetensors,
    safetensors_of,
)
from staq.version import __version__

FORMAT = 4
"""Of checkpoints and everything else that is written here; up to 3 they were ``.pt`` files."""
_DIGEST_BYTES = 16
_BLANK = b"0" * 2 * _DIGEST_BYTES
_DIGEST = b'"digest":"'  # quotes within a string are escaped, so nothing else in a header is like it


def write_atomically(path: Path, content: dict[str, Any]) -> None:
    """Digest and content under ``path`` at once or not at all, and on the disk when this returns."""
    tensors: Tensors = {}
    text = json.dumps(encoded(content, tensors), allow_nan=False, separators=(",", ":"))
    metadata = {"format": str(FORMAT), "version": __version__, "digest": _BLANK.decode(), "content": text}
    data = memoryview(safetensors_of(tensors, metadata))
    start = _place_of_digest(data, path.name)
    partial = path.with_name(f"{path.name}.partial")
    try:
        with partial.open("wb") as file:
            for part in (data[:start], _digest(data, start), data[start + len(_BLANK) :]):
                file.write(part)
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


def _place_of_digest(data: memoryview, what: str) -> int:
    header = bytes(data[8 : 8 + int.from_bytes(data[:8], "little")])
    found = header.find(_DIGEST)
    if found < 0:
        raise DamagedFile(f"{what} is damaged: it has no digest")
    return 8 + found + len(_DIGEST)


def _digest(data: memoryview, start: int) -> bytes:
    """Of a file with zeros in the place of its digest."""
    digest = hashlib.blake2b(data[:start], digest_size=_DIGEST_BYTES)
    digest.update(_BLANK)
    digest.update(data[start + len(_BLANK) :])
    return digest.hexdigest().encode()


def read(path: Path) -> dict[str, Any]:
    """A file's content: tensors, arrays, numbers and containers of them, never objects."""
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise DamagedFile(f"{path.name} is missing") from error
    metadata = header_of(data, path.name).get("__metadata__", {})
    if metadata.get("format") != str(FORMAT):
        raise DamagedFile(
            f"{path.name} has format {metadata.get('format')}, written by staq {metadata.get('version')}, and "
            f"staq {__version__} reads {FORMAT}: go on with the version that wrote it"
        )
    start = _place_of_digest(memoryview(data), path.name)
    if _digest(memoryview(data), start) != data[start : start + len(_BLANK)]:
        raise DamagedFile(f"{path.name} is damaged")
    tensors = read_safetensors(data, path.name)
    try:
        content: dict[str, Any] = decoded(parsed(metadata["content"], path.name), tensors, {})
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise DamagedFile(f"{path.name} is damaged: {error}") from error
    if not isinstance(content, dict):
        raise DamagedFile(f"{path.name} is damaged: it holds no table")
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
