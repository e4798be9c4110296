"""Policies on the Hugging Face hub: "hf:USER/REPO" is the export there, of which data only is fetched."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

PREFIX = "hf:"


def is_on_hub(path: str | Path) -> bool:
    """Whether this names a repository rather than a folder."""
    return isinstance(path, str) and path.startswith(PREFIX)


def downloaded(name: str, files: list[str]) -> Path:
    """The folder that some files of "hf:USER/REPO", or of "hf:USER/REPO@REVISION", have been downloaded to.

    Nothing else of the repository is fetched, and whatever these files are is for their reader to check.
    """
    repo, _, revision = name.removeprefix(PREFIX).partition("@")
    hub, errors = _hub()
    try:
        return Path(hub.snapshot_download(checked(repo), revision=revision or None, allow_patterns=files))
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError) as error:
        raise FileNotFoundError(
            f"{name} is not on the hub, or not for you: check the name, or log in with hf auth login."
        ) from error
    except errors.LocalEntryNotFoundError as error:
        raise FileNotFoundError(f"{name} was not downloaded before, and the hub is out of reach: {error}") from error


def push(folder: Path, repo: str) -> str:
    """Uploads a folder as a repository, which is made if it is not there, and returns its address."""
    hub, errors = _hub()
    api = hub.HfApi()
    try:
        api.create_repo(checked(repo), exist_ok=True)
        api.upload_folder(repo_id=repo, folder_path=folder, commit_message="A policy of staq")
    except errors.HfHubHTTPError as error:
        raise OSError(f"{folder} could not be pushed to {repo}: {error}. To log in: hf auth login.") from error
    return f"{api.endpoint}/{repo}"


def checked(repo: str) -> str:
    """The name of a repository, or an error for what is none."""
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repo):
        raise ValueError(f"{repo!r} is not the name of a repository on the hub: it must be USER/REPO.")
    return repo


def _hub() -> tuple[Any, Any]:
    try:
        import huggingface_hub
        from huggingface_hub import errors
    except ImportError as error:
        raise ModuleNotFoundError("The hub needs a package of an extra: pip install 'staq[hub]'") from error
    return huggingface_hub, errors
