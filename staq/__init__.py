"""StaQ: exact policy mirror descent, on stable-baselines3.

The public names are loaded on first use, so that ``staq.tabular`` can be used without PyTorch.
"""

import os as _os
from importlib import import_module
from typing import TYPE_CHECKING, Any

# OpenMP's threads spin while they wait for one another. Where another process is busy they spin on its core, and a
# training becomes many times slower. So they soon sleep instead, but not at once, since the next layer is close. It is
# read when PyTorch is loaded, so it comes first.
_os.environ.setdefault("GOMP_SPINCOUNT", "1000")

from staq import envs as _envs
from staq.registry import ALGORITHMS as _ALGORITHMS
from staq.version import __version__ as __version__

if TYPE_CHECKING:
    from staq.actions import BoundaryActions as BoundaryActions
    from staq.algorithms import ACDirectOpt as ACDirectOpt
    from staq.algorithms import ACMProj as ACMProj
    from staq.algorithms import ACNoKL as ACNoKL
    from staq.algorithms import ExactPMD as ExactPMD
    from staq.algorithms import NatGrad as NatGrad
    from staq.algorithms import StaQ as StaQ
    from staq.envs.masks import ActionMasks as ActionMasks
    from staq.policies import CnnPolicy as CnnPolicy
    from staq.policies import MlpPolicy as MlpPolicy
    from staq.policies import MultiInputPolicy as MultiInputPolicy
    from staq.storage.checkpoint import Checkpoints as Checkpoints
    from staq.storage.checkpoint import resume as resume
    from staq.storage.export import load_policy as load_policy
    from staq.storage.snapshots import Snapshots as Snapshots

_envs.register()

_HOMES = {record.class_name: record.home for record in _ALGORITHMS.values() if record.ours} | {
    "ActionMasks": "staq.envs.masks:ActionMasks",
    "BoundaryActions": "staq.actions:BoundaryActions",
    "Checkpoints": "staq.storage.checkpoint:Checkpoints",
    "CnnPolicy": "staq.policies:CnnPolicy",
    "MlpPolicy": "staq.policies:MlpPolicy",
    "MultiInputPolicy": "staq.policies:MultiInputPolicy",
    "Snapshots": "staq.storage.snapshots:Snapshots",
    "load_policy": "staq.storage.export:load_policy",
    "resume": "staq.storage.checkpoint:resume",
}

__all__ = sorted([*_HOMES, "__version__"])


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        module, attribute = _HOMES[name].split(":")
        return getattr(import_module(module), attribute)
    raise AttributeError(f"module 'staq' has no attribute {name!r}")
