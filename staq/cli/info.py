"""``staq info``: what this machine has."""

from __future__ import annotations

import argparse
import importlib.util
from typing import Any

import torch

from staq.cli import presets

EXTRAS = {
    "minatar": "minatar",
    "box2d": "Box2D",
    "baselines": "sb3_contrib",
    "mujoco": "mujoco",
    "experiments": "rliable",
    "distributed": "ray",
    "wandb": "wandb",
}
"""A module of every extra of this package."""


def add_command(commands: Any) -> None:
    """``staq info``"""
    command = commands.add_parser("info", help="versions, extras and presets on this machine")
    command.set_defaults(command=info)


def info(options: argparse.Namespace) -> None:
    from staq.cli.runs import provenance
    from staq.networks import kernels

    for name, value in provenance().items():
        print(f"{name:20} {value}")
    print(f"{'cuda':20} {torch.cuda.is_available()}")
    print(f"{'compiled kernels':20} {'yes' if kernels.available() else 'none, for want of a C compiler: slower'}")
    for extra, module in EXTRAS.items():
        found = importlib.util.find_spec(module) is not None
        print(f"{'extra ' + extra:20} {'installed' if found else f'pip install staq[{extra}]'}")
    for name in presets.names():
        print(f"{'preset ' + name:20} {presets.load(name).title}")
