"""Hooks of mkdocs for what is not written as Markdown in docs/: results, benchmarks, the notebook, hyperparameters.

Links stand as they are right in the repository; here they become links between pages.
"""

import os.path
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import nbformat
from mkdocs.structure.files import File, Files

from staq.hyperparameters import settings_of

OUTSIDE = ["README.md", "*/*.png", "*/*.json", "*/report/*"]
"""Of the folders beside docs/: pages, figures, and what they link to."""
NOTEBOOK = "notebook.ipynb"
SETTINGS = re.compile(r"<!-- settings (\S+):(\S+) -->")
LINK = re.compile(r"(?<=\]\()[^)#\s]+")


def on_files(files: Files, config: Any) -> Files:
    root = Path(config.config_file_path).parent
    for folder in ("results", "benchmarks"):
        for path in sorted(each for pattern in OUTSIDE for each in (root / folder).glob(pattern)):
            files.append(File.generated(config, path.relative_to(root).as_posix(), abs_src_path=str(path)))
    notebook = nbformat.read(root / "docs" / NOTEBOOK, as_version=4)
    cells = [*map(_markdown, notebook.cells), f"[Download this notebook]({NOTEBOOK})"]
    files.append(File.generated(config, "notebook.md", content="\n\n".join(cells)))
    return files


def _markdown(cell: Any) -> str:
    """A cell of a notebook, and below it what it printed and drew."""
    if cell.cell_type == "markdown":
        return cell.source
    shown = [f"```python\n{cell.source}\n```"]
    for output in cell.outputs:
        if output.output_type == "stream":
            shown.append(f"```text\n{output.text}```")
        else:
            shown.append(f"![what the cell draws](data:image/png;base64,{output.data['image/png'].strip()})")
    return "\n\n".join(shown)


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    here = os.path.dirname(page.file.src_uri)
    outside = page.file.src_uri.startswith(("results/", "benchmarks/"))
    in_repository = here if outside else os.path.join("docs", here)

    def link(match: re.Match[str]) -> str:
        target = os.path.normpath(os.path.join(in_repository, match[0])).removeprefix("docs/")
        return os.path.relpath(target, here or ".") if files.get_file_from_path(target) else match[0]

    return SETTINGS.sub(_table, LINK.sub(link, markdown))


def _table(match: re.Match[str]) -> str:
    """The hyperparameters of a group, or of the class that has it."""
    owner = getattr(import_module(match[1]), match[2])
    lines = ["| argument | default | |", "|---|---|---|"]
    for name, each in settings_of([getattr(owner, "Settings", owner)]).items():
        text = each.metadata["help"].replace("|", "\\|")
        lines.append(f"| `{name}` | `{each.default!r}` | {text} |")
    return "\n".join(lines)
