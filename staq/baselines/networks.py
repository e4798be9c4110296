"""StaQ's network for small boards, as stable-baselines3 wants it."""

from __future__ import annotations

from typing import Any

import torch
from gymnasium import spaces
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import nn


class ChannelNorm(nn.LayerNorm):
    """Layer normalisation over the channels at each place. [B, C, H, W]"""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.movedim(1, -1)).movedim(-1, 1)


class SmallImage(BaseFeaturesExtractor):
    """The convolution of the paper's Conv(16, 3, 3) + 128 for boards such as MinAtar's: height, width, channel.

    The 128 are the policy's ``net_arch``, so that an actor and its critic share no more than the convolution.
    """

    def __init__(
        self, observation_space: spaces.Box, activation_fn: type[nn.Module] = nn.ReLU, norm: bool = False
    ) -> None:
        # What SB3 takes for an image, it has turned to channel, height, width by now; and not what it does not.
        order = (0, 1, 2) if is_image_space(observation_space) else (2, 0, 1)
        channels, height, width = (observation_space.shape[i] for i in order)
        super().__init__(observation_space, features_dim=16 * (height - 2) * (width - 2))
        self.order = tuple(1 + i for i in order)
        normalised = [ChannelNorm(16)] if norm else []
        self.layers = nn.Sequential(nn.Conv2d(channels, 16, 3), *normalised, activation_fn(), nn.Flatten())

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        features: torch.Tensor = self.layers(obs.permute(0, *self.order))
        return features


def small_image(activation_fn: type[nn.Module] = nn.ReLU, norm: bool = False) -> dict[str, Any]:
    """SB3's ``policy_kwargs`` for the paper's network of small boards."""
    features = {"activation_fn": activation_fn, "norm": norm}
    return {"features_extractor_class": SmallImage, "features_extractor_kwargs": features, "net_arch": [128]}
