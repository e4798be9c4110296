"""``staq info``: what this machine has."""

from __future__ import annotations

import argparse
import importlib.util
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from staq.cli import presets
from staq.networks import kernels

EXTRAS = {
    "minatar": "minatar",
    "atari": "ale_py",
    "box2d": "Box2D",
    "baselines": "sb3_contrib",
    "mujoco": "mujoco",
    "experiments": "rliable",
    "distributed": "ray",
    "wandb": "wandb",
    "zoo": "rl_zoo3",
    "hub": "huggingface_hub",
    "onnx": "onnxscript",
    "tune": "optuna",
}
"""A module of every extra of this package."""


def add_command(commands: Any) -> None:
    """``staq info``"""
    command = commands.add_parser("info", help="versions, extras and presets on this machine, or how a run stands")
    command.set_defaults(command=info)
    command.add_argument("run", nargs="?", type=Path, metavar="RUN", help="a run")


def info(options: argparse.Namespace) -> None:
    if options.run is None:
        _machine()
    else:
        _run(options.run)


def _run(folder: Path) -> None:
    """What was run, how far it is, and the last line of its log."""
    from staq.cli.runs import Config, read_log

    config = Config.load(folder)
    for name, value in asdict(config).items():
        print(f"{name:24} {value}")
    log = read_log(folder)
    if not log:
        print("Nothing has been logged yet.")
        return
    print(f"The last of {len(log)} lines of its log:")
    for name, value in sorted(log[-1].items()):  # SB3's order is another one in every process
        if value != "":
            print(f"{name:24} {float(value):.10g}")
    if not (folder / "model").exists():
        print(f"It is not finished. Continue with: staq train --resume {folder}")


def _machine() -> None:
    from staq.cli.runs import provenance

    for name, value in provenance().items():
        print(f"{name:20} {value}")
    print(f"{'cuda':20} {torch.cuda.is_available()}")
    print(f"{'compiled kernels':20} {'yes' if kernels.available() else 'none, for want of a C compiler: slower'}")
    missing = [extra for extra, module in EXTRAS.items() if importlib.util.find_spec(module) is None]
    for extra in EXTRAS:
        print(f"{'extra ' + extra:20} {'missing' if extra in missing else 'installed'}")
    for name in presets.names():
        print(f"{'preset ' + name:20} {presets.load(name).title}")
    _advise(missing)


def _advise(missing: list[str]) -> None:
    """What to do about what is missing, at the end, where it is read."""
    print()
    if missing:
        print(f"For what is missing: pip install 'staq[{','.join(missing)}]'")
    if not kernels.available():
        print("For the compiled kernels: install a C compiler (apt install gcc), and begin again.")
    if not missing and kernels.available():
        print("Nothing is missing. Begin with: staq train CartPole-v1 --preset demo")
