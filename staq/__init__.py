"""StaQ: exact policy mirror descent, on stable-baselines3.

The public names are loaded on first use, so that ``staq.tabular`` can be used without PyTorch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from staq import envs as _envs
from staq.version import __version__

if TYPE_CHECKING:
    from staq.actions import BoundaryActions
    from staq.checkpoint import Checkpoints, resume
    from staq.export import load_policy
    from staq.family import ACDirectOpt, ACMProj, ACNoKL, ExactPMD, NatGrad, StaQ
    from staq.policies import CnnPolicy, MlpPolicy

_envs.register()

__all__ = [
    "ACDirectOpt",
    "ACMProj",
    "ACNoKL",
    "BoundaryActions",
    "Checkpoints",
    "CnnPolicy",
    "ExactPMD",
    "MlpPolicy",
    "NatGrad",
    "StaQ",
    "__version__",
    "load_policy",
    "resume",
]

_HOMES = {
    **dict.fromkeys(("ACDirectOpt", "ACMProj", "ACNoKL", "ExactPMD", "NatGrad", "StaQ"), "family"),
    "BoundaryActions": "actions",
    "Checkpoints": "checkpoint",
    "CnnPolicy": "policies",
    "MlpPolicy": "policies",
    "load_policy": "export",
    "resume": "checkpoint",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"staq.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'staq' has no attribute {name!r}")
