"""Transitions of a replay as data, in the place of SB3's pickled buffer."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import torch
from stable_baselines3.common.save_util import open_path

from staq.experience.replay import Replay
from staq.storage.model_file import NeedsTrust
from staq.storage.plain_data import DamagedFile, header_of, read_safetensors, safetensors_of
from staq.version import __version__

FORMAT = "staq-replay-1"
PICKLE = b"\x80"  # how every pickle since Python 3 begins


def write(path: str | Path | io.BufferedIOBase, replay: Replay) -> None:
    """All transitions, oldest first."""
    rows = {name: values.cpu().contiguous() for name, values in replay.newest(len(replay)).items()}
    data = safetensors_of(rows, {"format": FORMAT, "version": __version__, "next_row": str(replay.pos)})
    file = open_path(path, "w", verbose=0, suffix="safetensors")
    file.write(data)
    if isinstance(path, (str, Path)):
        file.close()


def read_into(path: str | Path | io.BufferedIOBase, replay: Replay, trust: bool) -> None:
    """Puts the transitions of a file into a replay, or as many of the newest as it has room for."""
    there = [suffix for suffix in ("safetensors", "pkl") if Path(f"{path}.{suffix}").exists()]
    file, what = open_path(path, "r", verbose=0, suffix=there[0] if there else None), str(path)
    try:
        data = file.read()
    finally:
        if isinstance(path, (str, Path)):
            file.close()
    next_row, rows = _unpickled(data, what, trust) if data[:1] == PICKLE else _read(data, what)
    size = replay.buffer_size
    n = len(rows["rewards"])
    _check(rows, replay, n, what)
    if n > size:
        rows, n = {name: values[-size:] for name, values in rows.items()}, size
    replay.put(rows, next_row if n == size and 0 <= next_row < size else n % size)


def _read(data: bytes, what: str) -> tuple[int, dict[str, torch.Tensor]]:
    metadata: Any = header_of(data, what).get("__metadata__", {})
    if not isinstance(metadata, dict) or metadata.get("format") != FORMAT:
        raise DamagedFile(f"{what} holds no replay of {FORMAT}: write one with save_replay_buffer.")
    rows, next_row = read_safetensors(data, what), metadata.get("next_row", "")
    if "rewards" not in rows or not next_row.isdecimal() or len(next_row) > 18:
        raise DamagedFile(f"{what} is damaged: it lacks rewards, or its next row")
    return int(next_row), rows


def _unpickled(data: bytes, what: str, trust: bool) -> tuple[int, dict[str, torch.Tensor]]:
    if not trust:
        raise NeedsTrust(
            f"{what} is a pickle, as SB3 and older versions write a replay, and loading it can run any code that its "
            "maker put in. If you trust its source, pass trust=True."
        )
    replay = pickle.loads(data)
    if not isinstance(replay, Replay):
        raise ValueError(f"{what} holds a {type(replay).__name__}, not a replay: write one with save_replay_buffer.")
    return replay.pos, replay.newest(len(replay))


def _check(rows: dict[str, torch.Tensor], replay: Replay, n: int, what: str) -> None:
    """Before any of it is taken over."""
    own = {*replay.transition} - {"masks", "next_masks"}
    if not own <= rows.keys() <= own | {"masks", "next_masks"} or ("masks" in rows) != ("next_masks" in rows):
        raise DamagedFile(f"{what} holds {', '.join(sorted(rows))}, not the transitions of a replay")
    for name, values in rows.items():
        if name in ("masks", "next_masks"):
            shape: tuple[int, ...] = (n, replay.architecture.factors.n_outputs)
            dtype = torch.bool
        else:
            whole = getattr(replay, name)
            shape, dtype = (n, *whole.shape[1:]), whole.dtype
        observed = name.endswith("observations")  # VecNormalize's are floats, whatever their space says
        if tuple(values.shape) != shape or (values.dtype != dtype and not observed):
            raise ValueError(
                f"{what} has {name} of shape {list(values.shape)} and type {values.dtype}, and this model's replay "
                f"needs {list(shape)} and {dtype}: load it into a model of the same spaces."
            )
    actions, sizes = rows["actions"].reshape(n, -1), torch.tensor(replay.architecture.factors.sizes)
    if bool((actions < 0).any()) or bool((actions.cpu() >= sizes).any()):
        raise DamagedFile(f"{what} has actions that are none of {sizes.tolist()} choices")
