"""The TOML files of a package, by name."""

from __future__ import annotations

import functools
import tomllib
from importlib import resources
from typing import Any

from staq.hyperparameters import chosen


@functools.cache
def names(package: str) -> tuple[str, ...]:
    files = resources.files(package).iterdir()
    return tuple(sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml")))


def content(package: str, name: str, what: str) -> dict[str, Any]:
    """What a file says; an unknown name is an error that names the nearest.

    :param what: what the files are, for the error
    """
    chosen(what, name, dict.fromkeys(names(package)))
    return tomllib.loads(resources.files(package).joinpath(f"{name}.toml").read_text("utf-8"))
