"""StaQ's network for small boards, as stable-baselines3 wants it."""

from __future__ import annotations

from typing import Any

import torch
from gymnasium import spaces
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import nn


class SmallImage(BaseFeaturesExtractor):
    """The paper's Conv(16, 3, 3) + 128 for boards such as MinAtar's: height, width, channel, in any type."""

    def __init__(self, observation_space: spaces.Space[Any], activation_fn: type[nn.Module] = nn.ReLU) -> None:
        super().__init__(observation_space, features_dim=128)
        assert observation_space.shape is not None
        height, width, channels = observation_space.shape
        self.layers = nn.Sequential(
            nn.Conv2d(channels, 16, 3),
            activation_fn(),
            nn.Flatten(),
            nn.Linear(16 * (height - 2) * (width - 2), 128),
            activation_fn(),
        )

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        features: torch.Tensor = self.layers(obs.permute(0, 3, 1, 2))
        return features
