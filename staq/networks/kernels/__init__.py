"""Kernels in C for what PyTorch has no operator for, compiled when they are first wanted.

Nothing needs them: where there is no compiler, or ``STAQ_COMPILE=0`` is set, the same is computed by PyTorch, up to
rounding. What was compiled is kept in the user's cache and found there from then on.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

FLAGS = ("-O3", "-march=native", "-fno-math-errno", "-fopenmp", "-shared", "-fPIC")
"""OpenMP's threads are PyTorch's: both link to the one runtime that is already loaded."""
TIMEOUT = 60


@functools.cache
def load(name: str) -> ctypes.CDLL | None:
    """The functions of ``name``.c, or None where they cannot be had."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None or os.environ.get("STAQ_COMPILE") == "0":
        return None
    source = Path(__file__).with_name(f"{name}.c")
    try:
        library = _cache() / f"{name}-{_fingerprint(source, compiler)}.so"
        if not library.exists():
            _compile(source, library, compiler)
        return ctypes.CDLL(str(library))
    except (OSError, subprocess.SubprocessError):  # no right to write, no OpenMP, a compiler of another kind
        return None


def bound(function: Any, *arguments: Any) -> Callable[[], None]:
    """A kernel's function with its arguments, to be called as often as one likes: tensors are known by their addresses.

    Between two large products it is the small things that take time: here they are done once.
    """
    converted = tuple(map(_as_argument, arguments))

    def call() -> None:
        function(*converted)

    call.held = arguments  # type: ignore[attr-defined]  # what the addresses are of
    return call


def _as_argument(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return ctypes.c_void_p(value.data_ptr())
    if isinstance(value, float):
        return ctypes.c_float(value)
    return ctypes.c_long(value) if isinstance(value, (int, bool)) else value


def available() -> bool:
    """Whether all kernels can be had here."""
    return all(load(source.stem) is not None for source in Path(__file__).parent.glob("*.c"))


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "staq"


def _fingerprint(source: Path, compiler: str) -> str:
    """Of all that a library depends on. Machines that share a home need not share an instruction set."""
    cpu = Path("/proc/cpuinfo")
    flags = next((line for line in cpu.read_text().splitlines() if "flags" in line), "") if cpu.exists() else ""
    sources = [path.read_text() for path in (source, *sorted(source.parent.glob("*.h")))]
    parts = [*sources, compiler, *FLAGS, platform.platform(), platform.processor(), flags]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _compile(source: Path, library: Path, compiler: str) -> None:
    """To a file that appears when it is whole, since several runs may begin at once."""
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        made = Path(folder) / library.name
        command = [compiler, *FLAGS, "-o", str(made), str(source)]
        subprocess.run(command, check=True, capture_output=True, timeout=TIMEOUT)
        made.replace(library)
