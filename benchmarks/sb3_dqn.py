"""Stable-Baselines3's DQN with StaQ's network and batch, one update per environment step.

    python -m benchmarks.sb3_dqn MinAtar/SpaceInvaders-v1

Its critic is one network where StaQ trains two.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import torch
from gymnasium import spaces
from stable_baselines3 import DQN
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import nn

from benchmarks.scenario import peak_memory
from staq.runs import make_envs


class SmallImage(BaseFeaturesExtractor):
    """The paper's Conv(16, 3, 3) + 128 for boards of 10×10."""

    def __init__(self, observation_space: spaces.Space[Any]) -> None:
        super().__init__(observation_space, features_dim=128)
        assert observation_space.shape is not None
        self.layers = nn.Sequential(
            nn.Conv2d(observation_space.shape[-1], 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(1024, 128), nn.ReLU()
        )

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        features: torch.Tensor = self.layers(obs.permute(0, 3, 1, 2))
        return features


def step_ms(env_id: str, steps: int, samples: int) -> float:
    """Milliseconds per environment step: the median of samples, after one to warm up."""
    board = env_id.startswith("MinAtar/")
    network = {"features_extractor_class": SmallImage, "net_arch": []} if board else {"net_arch": [256, 256]}
    model = DQN(
        "MlpPolicy",
        make_envs(env_id, 1),
        buffer_size=50_000,
        batch_size=256,
        learning_starts=256,
        train_freq=1,
        gradient_steps=1,
        policy_kwargs=network,
        seed=0,
        device="cpu",
    )
    model.learn(256)
    found = []
    for _ in range(samples + 1):
        start = time.perf_counter()
        model.learn(steps, reset_num_timesteps=False, log_interval=10**9)
        found.append(1000 * (time.perf_counter() - start) / steps)
    return statistics.median(found[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("env")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--samples", type=int, default=2)
    options = parser.parse_args()
    print(json.dumps({"total_ms": step_ms(options.env, options.steps, options.samples), "peak_gb": peak_memory()}))


if __name__ == "__main__":
    main()
