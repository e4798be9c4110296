"""Hooks of mkdocs for pages that are not written as Markdown in docs/: results, benchmarks and the notebook.

Links stand as they are right in the repository; here they become links between pages.
"""

import os.path
import re
from pathlib import Path
from typing import Any

import nbformat
from mkdocs.structure.files import File, Files

OUTSIDE = ["README.md", "*/*.png", "*/*.json", "*/report/*"]
"""Of the folders beside docs/: pages, figures, and what they link to."""
NOTEBOOK = "notebook.ipynb"
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

    return LINK.sub(link, markdown)
