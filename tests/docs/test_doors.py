"""Every command on the pages of the doors is one: what they do is tested where they are made."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from staq.cli.main import build_parser
from staq.zoo import NAMES
from staq.zoo.__main__ import COMMANDS

DOCS = Path(__file__).parents[2] / "docs"
BLOCKS = re.compile(r"```sh\n(.*?)```", re.DOTALL)
LINES = [
    (page, line)
    for page in ("zoo", "hub", "onnx", "tune")
    for block in BLOCKS.findall((DOCS / f"{page}.md").read_text())
    for line in block.splitlines()
]


@pytest.mark.parametrize("line", [line for _, line in LINES if line.startswith("staq ")])
def test_commands_of_staq(line: str) -> None:
    assert build_parser().parse_known_args(shlex.split(line)[1:])[1] == []


@pytest.mark.parametrize("line", [line for _, line in LINES if line.startswith("python -m staq.zoo ")])
def test_commands_of_the_zoo(line: str) -> None:
    command, *words = shlex.split(line)[3:]
    assert command in COMMANDS
    assert words[1] in NAMES


def test_nothing_else_is_there() -> None:
    others = {line.split()[0] for _, line in LINES if not line.startswith(("staq ", "python -m staq.zoo "))}
    assert others == {"pip", "hf", "python"}
    assert len(LINES) > 12
