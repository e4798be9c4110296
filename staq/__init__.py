"""StaQ: exact policy mirror descent for discrete actions, on stable-baselines3."""

from staq import envs as _envs
from staq.algorithm import StaQ
from staq.policies import CnnPolicy, MlpPolicy
from staq.version import __version__

_envs.register()

__all__ = ["CnnPolicy", "MlpPolicy", "StaQ", "__version__"]
