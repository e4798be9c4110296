"""StaQ: exact policy mirror descent for discrete actions, on stable-baselines3."""

from staq import envs as _envs
from staq.algorithm import StaQ
from staq.checkpoint import Checkpoints, resume
from staq.export import load_policy
from staq.policies import CnnPolicy, MlpPolicy
from staq.version import __version__

_envs.register()

__all__ = ["Checkpoints", "CnnPolicy", "MlpPolicy", "StaQ", "__version__", "load_policy", "resume"]
