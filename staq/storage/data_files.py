"""The TOML files of a package, by name."""

from __future__ import annotations

import tomllib
from importlib import resources
from typing import Any

from staq.arguments import nearest


def names(package: str) -> list[str]:
    files = resources.files(package).iterdir()
    return sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml"))


def content(package: str, name: str, what: str) -> dict[str, Any]:
    """What a file says; an unknown name is an error that names the nearest.

    :param what: what the files are, for the error
    """
    known = names(package)
    if name not in known:
        raise ValueError(f"There is no {what} {name!r}.{nearest(name, known)} There are: {', '.join(known)}.")
    return tomllib.loads(resources.files(package).joinpath(f"{name}.toml").read_text("utf-8"))
