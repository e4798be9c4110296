"""Values of command-line options."""

from __future__ import annotations

import argparse
import math
import re
import tomllib
from typing import Any


def number_from(text: str) -> float:
    """A number as it is typed."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number") from None


def whole_number(text: str) -> int:
    """5000, 5_000 or 5e3."""
    number = number_from(text)
    if not number.is_integer() or number <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return int(number)


def positive(text: str) -> float:
    """A number above 0."""
    number = number_from(text)
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return number


def part(text: str) -> float:
    """A number above 0, at most 1."""
    number = number_from(text)
    if not 0 < number <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no part of a run: it must be above 0 and at most 1")
    return number


def toml_value(text: str) -> Any:
    """A hyperparameter as TOML writes it, or a bare word; none for None."""
    if text.lower() == "none":
        return None
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        if text.startswith(("{", "[")):
            raise argparse.ArgumentTypeError(f"{text} is not TOML, as {{net_arch = [64, 64]}} is") from None
        return text
    # 1e6 is a float in TOML, but who writes it means a million steps.
    return int(value) if isinstance(value, float) and value < 2**53 and re.fullmatch(r"\d+e\d+", text) else value


def checked_device(name: str) -> str:
    """A device that there is; "auto" is the GPU where there is one."""
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise ValueError(f"--device {name}: it must be auto, cpu or cuda.")
    if torch.device(name).type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"--device {name}: PyTorch finds no GPU on this machine; use cpu or auto.")
    return name
