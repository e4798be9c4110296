"""Runs the blocks of a page of the documentation."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

from staq.cli.main import main

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r'^```(python|sh)(?: title="(.*?)")?\n(.*?)^```', re.DOTALL | re.MULTILINE)


def run_blocks(text: str, *languages: str) -> dict[str, Any]:
    """Run every block in order. One of Python with a file's name becomes that file; lines of ``sh`` are staq's."""
    names: dict[str, Any] = {}
    for language, file, code in BLOCK.findall(text):
        if language not in languages:
            continue
        if file:
            Path(file).write_text(code)
        elif language == "python":
            exec(code, names)
        else:
            for line in code.splitlines():
                staq, *words = shlex.split(line, comments=True)
                assert (staq, main(words)) == ("staq", 0), line
    return names
