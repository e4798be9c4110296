"""The shape of a Q-network: many of one shape are evaluated together.

A network is a set of named weights; N networks are the same names with a leading axis of N. Every hidden layer
of all of them is one batched product [N, batch, inputs] · [N, inputs, outputs]: rows are observations and weights
lie as they are multiplied, which is the order that BLAS needs no transposed copies for.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from gymnasium import spaces
from stable_baselines3.common.preprocessing import preprocess_obs

from staq.actions import Factors
from staq.networks.observation_parts import ObservationParts

Weights = Mapping[str, torch.Tensor]
OUTPUT_WEIGHT, OUTPUT_BIAS = "output.weight", "output.bias"


class Architecture(ABC):
    """The shape of one Q-network: everything up to its linear output layer is left to the subclass."""

    def __init__(
        self,
        observation_space: spaces.Space,
        n_actions: int | Factors,
        hidden_size: int,
        normalize_images: bool,
    ) -> None:
        self.observation_space = observation_space
        self.parts = ObservationParts(observation_space) if isinstance(observation_space, spaces.Dict) else None
        self.normalize_images = normalize_images
        self.factors = n_actions if isinstance(n_actions, Factors) else Factors([n_actions])
        self.n_actions = self.factors.n_outputs
        self.hidden_size = hidden_size

    fixed: frozenset[str] = frozenset()
    """Weights that are not trained."""

    @abstractmethod
    def initial_trunk(self) -> dict[str, torch.Tensor]:
        """Freshly drawn weights of one network, without its output layer."""

    @abstractmethod
    def inputs(self, obs: torch.Tensor) -> Any:
        """What every network computes from B observations alike, and ``hidden`` starts from."""

    @abstractmethod
    def inputs_of_parts(self, each: Mapping[str, torch.Tensor]) -> Any:
        """``inputs`` of observations of several parts, which ``inputs`` finds side by side. {key: [B, ...]}"""

    def inputs_of_many(self, obs: torch.Tensor) -> Any:
        """What ``hidden_of_many`` starts from."""
        return self.inputs(obs)

    @abstractmethod
    def hidden(self, weights: Weights, inputs: Any) -> torch.Tensor:
        """What the output layers of N networks see of B observations' inputs. → [N, B, hidden_size]"""

    def hidden_in_training(self, weights: Weights, inputs: Any) -> torch.Tensor:
        """``hidden`` of networks that learn, whose statistics, if they have any, follow."""
        return self.hidden(weights, inputs)

    def hidden_of_many(self, weights: Weights, inputs: Any) -> torch.Tensor:
        """``hidden`` of networks that nobody differentiates, by whatever is fastest."""
        return self.hidden(weights, inputs)

    def initial_weights(self) -> dict[str, torch.Tensor]:
        """One network. Its output layer is zero, so that q = 0 and the first policy is uniform (Sec. 4.1)."""
        return self.initial_trunk() | {
            OUTPUT_WEIGHT: torch.zeros(self.n_actions, self.hidden_size),
            OUTPUT_BIAS: torch.zeros(self.n_actions),
        }

    def q_values(self, weights: Weights, obs: torch.Tensor, learning: bool = False) -> torch.Tensor:
        """q of N networks for B observations in their stored type. → [N, A, B]"""
        hidden = (self.hidden_in_training if learning else self.hidden)(weights, self.inputs(obs))
        return output(weights[OUTPUT_WEIGHT], weights[OUTPUT_BIAS], hidden)

    @torch.no_grad()
    def frozen_q_values(self, weights: Weights, obs: torch.Tensor) -> torch.Tensor:
        """``q_values`` of networks that nobody differentiates. → [N, A, B]"""
        hidden = self.hidden_of_many(weights, self.inputs_of_many(obs))
        return output(weights[OUTPUT_WEIGHT], weights[OUTPUT_BIAS], hidden)

    def preprocessed(self, obs: torch.Tensor) -> torch.Tensor:
        """SB3's preparation: floats, images scaled to [0, 1], one-hot for discrete observations."""
        return self._preprocessed(obs, self.observation_space)

    def preprocessed_parts(self, each: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The same of observations of several parts."""
        assert self.parts is not None
        return {key: self._preprocessed(values, self.parts.space[key]) for key, values in each.items()}

    def _preprocessed(self, obs: torch.Tensor, space: spaces.Space) -> torch.Tensor:
        if isinstance(space, spaces.Discrete):
            obs = obs.reshape(-1) - int(space.start)
        if obs.dtype == torch.bool:
            obs = obs.view(torch.uint8)  # the same bytes, which become floats ten times as fast
        prepared = preprocess_obs(obs, space, self.normalize_images)
        assert isinstance(prepared, torch.Tensor)
        return prepared


def output(weight: torch.Tensor, bias: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    """The output layers, one row per action: BLAS is slow at results with few columns, not at those with few rows.

    [N, A, H], [N, A], [N, B, H] → [N, A, B]
    """
    return torch.baddbmm(bias.unsqueeze(-1), weight, hidden.transpose(1, 2))
