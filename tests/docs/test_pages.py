"""The pages of the documentation: their code runs as it stands, and the site that they make is whole."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from tests.docs.blocks import BLOCK, DOCS, run_blocks

ROOT = DOCS.parent
PAGES = ["coming-from", "concepts", "deploy", "environments", "networks"]
"""Whose Python stands by itself; the recipes have a test of their own."""


def page(name: str, steps: str = "all") -> str:
    text = (DOCS / f"{name}.md").read_text()
    return text if steps == "all" else re.sub(r"(\d)0_?000\b", r"\g<1>_000", text)


STEPS = pytest.mark.parametrize("steps", ["a tenth", pytest.param("all", marks=pytest.mark.slow)])


@STEPS
def test_getting_started(steps: str) -> None:
    """Every block in order, of Python and of the command line; only the installation is not run."""
    text = page("getting-started", steps)
    assert len(BLOCK.findall(text)) == text.count("\n```\n") - 1
    names = run_blocks(text, "python", "sh")
    assert all(Path(file).stat().st_size > 1_000 for file in ("first.gif", "curves.png", "cartpole.zip"))
    if steps == "all":
        assert names["mean"] > 200  # a uniform policy has 22


@STEPS
@pytest.mark.parametrize("name", PAGES)
def test_the_python_of_a_page(name: str, steps: str) -> None:
    try:
        names = run_blocks(page(name, steps), "python")
        if steps == "all" and name in CHECKS:
            CHECKS[name](names)
    finally:
        gymnasium.registry.pop("Corridor-v0", None)


def the_shapes_are_as_printed(names: dict[str, Any]) -> None:
    assert names["learning"].shape == (64, 1, 2)
    assert names["frozen"].shape == (64, 5, 1, 2)


def it_walks_to_the_right(names: dict[str, Any]) -> None:
    places = np.arange(5, dtype=np.float32)[:, None] / 10
    assert names["model"].predict(places, deterministic=True)[0].tolist() == [1] * 5


CHECKS = {"concepts": the_shapes_are_as_printed, "environments": it_walks_to_the_right}


def test_a_preempted_script_goes_on() -> None:
    """The page's one script, started twice: the second start has nothing left to do."""
    assert run_blocks(page("preemption"), "python")["left"] == 8_192
    assert run_blocks(page("preemption"), "python")["left"] == 0


@pytest.mark.slow
def test_the_start_page() -> None:
    run_blocks(page("index"), "python")


@pytest.mark.slow
def test_the_notebook() -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    began = time.monotonic()
    notebook = nbformat.read(DOCS / "notebook.ipynb", as_version=4)
    nbclient.NotebookClient(notebook, timeout=180, kernel_name="python3").execute()
    assert time.monotonic() - began < 180


class Loaded(HTMLParser):
    """What a page loads when it is shown."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = dict(attributes)
        if tag in ("script", "img", "source", "iframe"):
            self.addresses.append(found.get("src") or "")
        elif tag == "link" and found.get("rel") in ("stylesheet", "icon", "preload"):
            self.addresses.append(found.get("href") or "")


@pytest.mark.slow
def test_the_site(tmp_path: Path) -> None:
    """It builds without a warning (strict), its links are whole, and a page loads nothing from elsewhere."""
    pytest.importorskip("mkdocs")
    command = [sys.executable, "-m", "mkdocs", "build", "--config-file", str(ROOT / "mkdocs.yml")]
    built = subprocess.run([*command, "--site-dir", str(tmp_path / "site")], cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    pages = sorted((tmp_path / "site").rglob("index.html"))
    assert len(pages) > 25
    for html in pages:
        loaded = Loaded()
        loaded.feed(html.read_text())
        assert not [address for address in loaded.addresses if re.match(r"(https?:)?//", address)], html
