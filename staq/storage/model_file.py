"""SB3's zip of a model with nothing pickled inside, unless a part of it can only be pickled: then loading needs trust.

data                 JSON: format, version, algorithm, the model's attributes, and the names of its tensors
tensors.safetensors  the tensors
system_info.txt, _stable_baselines3_version    as SB3 writes them

No member is compressed, so that what is read is never larger than the file; none is ever written to the disk.
"""

from __future__ import annotations

import base64
import functools
import io
import json
import pickle
import zipfile
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import cloudpickle
import stable_baselines3
import torch
from gymnasium import spaces
from stable_baselines3.common.save_util import load_from_zip_file, open_path
from stable_baselines3.common.utils import ConstantSchedule, FloatSchedule, LinearSchedule, get_system_info
from torch import nn

from staq.storage.plain_data import (
    MOST_JSON,
    DamagedFile,
    Tensors,
    check_finite,
    decoded,
    encoded,
    parsed,
    read_safetensors,
    safetensors_of,
)
from staq.storage.spaces import describe_space, space_from
from staq.version import __version__

FORMAT = "staq-model-1"
DATA, TENSORS = "data", "tensors.safetensors"
VERSION, SYSTEM = "_stable_baselines3_version", "system_info.txt"
SCHEDULES: dict[str, type] = {kind.__name__: kind for kind in (ConstantSchedule, LinearSchedule, FloatSchedule)}
FilePath = str | Path | io.BufferedIOBase
Damage = (KeyError, TypeError, ValueError, AttributeError, AssertionError, RuntimeError, MemoryError, RecursionError)
"""What reading a file that lies about itself may raise."""


class NeedsTrust(ValueError):
    """A file holds a pickle, and unpickling runs whatever its maker put in."""


@dataclass(frozen=True)
class Saved:
    """What a file of a model or a policy holds."""

    kind: str
    """Name of the class that was saved."""
    attributes: dict[str, Any]
    parameters: dict[str, Any]


@functools.cache
def nameable() -> dict[str, Any]:
    """The classes that a file may name: nothing else is ever looked up or imported."""
    from staq import policies
    from staq.networks.optimizer import RAdam
    from staq.policy_improvement.mirror_descent import StepSize
    from staq.registry import ALGORITHMS
    from staq.storage.policy_shapes import EXTRACTORS

    improvements = [record.load().improvement for record in ALGORITHMS.values() if record.ours]
    optimizers = [getattr(torch.optim, name) for name in ("Adam", "AdamW", "NAdam", "RAdam", "RMSprop", "SGD")]
    classes = [
        *(getattr(nn.modules.activation, name) for name in nn.modules.activation.__all__),
        *EXTRACTORS.values(),
        *(policies.StaQPolicy, policies.MlpPolicy, policies.CnnPolicy, policies.MultiInputPolicy),
        *(*optimizers, RAdam, StepSize, *improvements, *(improvement.Settings for improvement in improvements)),
    ]
    return {_path_of(kind): kind for kind in classes}


def _path_of(kind: Any) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def write(path: FilePath, kind: str, attributes: dict[str, Any], parameters: dict[str, Any]) -> None:
    """Writes a file; attributes that are code nobody can name, such as a lambda, are pickled."""
    tensors: Tensors = {}
    content = {
        "attributes": encoded(attributes, tensors, _described, "attributes"),
        "parameters": encoded(parameters, tensors, path="parameters"),
    }
    data = {"format": FORMAT, "version": __version__, "class": kind, **content}
    file = open_path(path, "w", verbose=0, suffix="zip")
    try:
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr(DATA, json.dumps(data, indent=1, allow_nan=False))
            archive.writestr(TENSORS, safetensors_of(tensors))
            archive.writestr(VERSION, stable_baselines3.__version__)
            archive.writestr(SYSTEM, get_system_info(print_info=False)[1])
    finally:
        if isinstance(path, (str, Path)):
            file.close()


def _described(value: Any, path: str) -> Any:
    """What is no plain data, by name where it has one."""

    def described(inner: Any) -> Any:
        return encoded(inner, {}, _described, path)

    kind = type(value)
    if isinstance(value, type) and nameable().get(_path_of(value)) is value:
        return {"$class": _path_of(value)}
    if isinstance(value, spaces.Space):
        return {"$space": describe_space(value)}
    if SCHEDULES.get(kind.__name__) is kind:
        return {"$schedule": [kind.__name__, described(vars(value))]}
    if nameable().get(_path_of(kind)) is kind:
        values = {each.name: getattr(value, each.name) for each in fields(value)}
        return {"$values": [_path_of(kind), described(values)]}
    if isinstance(value, partial) and not value.args and nameable().get(_path_of(value.func)) is value.func:
        return {"$partial": [_path_of(value.func), described(value.keywords)]}
    if kind is deque:
        return {"$deque": [described(list(value)), value.maxlen]}
    return {"$pickle": base64.b64encode(cloudpickle.dumps(value)).decode("ascii")}


def read(
    path: FilePath,
    trust: bool = False,
    custom_objects: dict[str, Any] | None = None,
    print_system_info: bool = False,
) -> Saved:
    """What a file holds, on the CPU.

    :param trust: whether what is pickled may be unpickled, which can run any code
    :param custom_objects: attributes to put in the place of the file's, which are then not read
    """
    what = _name_of(path)
    if Path(what).is_dir():
        raise ValueError(f"{what} is a folder, not the zip of a model: staq.load_policy loads exported policies.")
    try:
        file = open_path(path, "r", verbose=0, suffix="zip")
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{what} does not exist.") from error
    try:
        with zipfile.ZipFile(file) as archive:
            members = _members(archive, what)
            data = parsed(_member(archive, members, DATA, what), f"{what}: {DATA}")
            if not isinstance(data, dict):
                raise DamagedFile(f"{what} is no model: its {DATA} is no object")
            if "format" not in data:
                _check_pickled(data, what, trust)
                return _from_sb3(file, custom_objects, print_system_info)
            if data["format"] != FORMAT:
                raise ValueError(
                    f"{what} has format {data['format']!r}, written by staq {data.get('version')}, and staq "
                    f"{__version__} reads {FORMAT!r}: load it with the version that wrote it."
                )
            unknown = members.keys() - {DATA, TENSORS, VERSION, SYSTEM}
            if unknown:
                raise DamagedFile(f"{what} holds {min(unknown)!r}, which is no part of a model")
            if print_system_info:
                print("== SAVED MODEL SYSTEM INFO ==")
                print(_member(archive, members, SYSTEM, what).decode(errors="replace"))
            tensors = read_safetensors(_member(archive, members, TENSORS, what), what)
    except (zipfile.BadZipFile, EOFError, OSError, NotImplementedError) as error:
        raise DamagedFile(f"{what} is no zip of a model, or damaged: {error}") from error
    finally:
        if isinstance(path, (str, Path)):
            file.close()
    return _saved(data, tensors, what, trust, custom_objects or {})


def _name_of(path: FilePath) -> str:
    return str(path) if isinstance(path, (str, Path)) else "The file"


def _members(archive: zipfile.ZipFile, what: str) -> dict[str, zipfile.ZipInfo]:
    """What is in an archive, if it is as ``write`` and SB3 leave it."""
    members: dict[str, zipfile.ZipInfo] = {}
    for info in archive.infolist():
        if info.filename in members:
            raise DamagedFile(f"{what} holds {info.filename!r} twice")
        if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
            raise DamagedFile(f"{what} holds {info.filename!r} compressed, which no model's file does")
        members[info.filename] = info
    return members


def _member(archive: zipfile.ZipFile, members: dict[str, zipfile.ZipInfo], name: str, what: str) -> bytes:
    if name not in members:
        raise DamagedFile(f"{what} is no model: it has no {name!r}")
    if name != TENSORS and members[name].file_size > MOST_JSON:
        raise DamagedFile(f"{what} has {members[name].file_size:,} bytes of {name}: at most {MOST_JSON:,} are read")
    return archive.read(members[name])


def _check_pickled(data: dict[str, Any], what: str, trust: bool) -> None:
    """Of a zip as SB3 writes it, which says whose it is in plain text."""
    policy = data.get("policy_class")
    module = policy.get("__module__", "") if isinstance(policy, dict) else ""
    if isinstance(module, str) and module.startswith("stable_baselines3."):
        name = module.split(".")[1].upper()
        raise ValueError(
            f"{what} is a model of stable-baselines3's {name}, not of staq: load it with {name}.load (on the "
            "command line with --trust)."
        )
    if not trust:
        raise NeedsTrust(
            f"{what} is pickled, as the zips of SB3 and of older versions are, and loading it can run any code that "
            "its maker put in. If you trust its source, pass trust=True (on the command line --trust); or ask for "
            "an export (model.export), which is data only."
        )


def _from_sb3(file: Any, custom_objects: dict[str, Any] | None, print_system_info: bool) -> Saved:
    file.seek(0)
    data, parameters, _ = load_from_zip_file(
        file, device="cpu", custom_objects=custom_objects, print_system_info=print_system_info
    )
    states: dict[str, Any] = dict(parameters)
    check_finite({k: v for part in states.values() for k, v in part.items() if torch.is_tensor(v)}, "The file")
    return Saved("", data or {}, states)


def _saved(data: dict[str, Any], tensors: Tensors, what: str, trust: bool, replaced: dict[str, Any]) -> Saved:
    readers = {
        "$class": lambda name: nameable()[name],
        "$space": space_from,
        "$schedule": lambda content: _schedule(*content),
        "$values": lambda content: nameable()[content[0]](**content[1]),
        "$partial": lambda content: partial(nameable()[content[0]], **content[1]),
        "$deque": lambda content: deque(content[0], maxlen=content[1]),
    }
    try:
        kind, attributes = str(data["class"]), data["attributes"]
        found = {
            name: replaced[name]
            if name in replaced
            else decoded(tree, tensors, readers | {"$pickle": _unpickler(what, name, trust)})
            for name, tree in attributes.items()
        }
        return Saved(kind, found, decoded(data["parameters"], tensors, {}))
    except NeedsTrust:
        raise
    except Damage as error:
        raise DamagedFile(f"{what} is damaged ({type(error).__name__}: {error})") from error


def _unpickler(what: str, name: str, trust: bool) -> Callable[[str], Any]:
    def refused(_: str) -> NoReturn:
        raise NeedsTrust(
            f"{what} holds {name} as a pickle, and unpickling can run any code that its maker put in. Give your own as "
            f"custom_objects={{{name!r}: …}}, or if you trust its source pass trust=True (on the command line --trust)."
        )

    return (lambda text: pickle.loads(base64.b64decode(text))) if trust else refused


def _schedule(name: str, arguments: dict[str, Any]) -> Any:
    return SCHEDULES[name](**arguments)
