"""PQN by autograd (``staq.baselines.pqn``), with the environments, minibatches, passes and norm of StaQ's λ-returns.

    python -m benchmarks.plain_pqn MinAtar/Breakout-v1 --layers conv2d

What a user would take instead. The last line is JSON: milliseconds per environment step in the environments, and
outside of them.
"""

from __future__ import annotations

import argparse
import json
import statistics

import torch
from gymnasium import spaces
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import nn

from benchmarks.lambda_returns import ITERATIONS, N_ENVS, N_STEPS, Stopwatch
from staq.baselines.networks import small_image
from staq.baselines.pqn import PQN
from staq.cli import presets
from staq.envs.make import make_envs
from staq.experiments.timing import peak_memory


class Patches(BaseFeaturesExtractor):
    """The same convolution as a product over patches, which is at times the faster one on a CPU."""

    def __init__(self, observation_space: spaces.Box) -> None:
        height, width, channels = observation_space.shape
        super().__init__(observation_space, features_dim=16 * (height - 2) * (width - 2))
        self.layers = nn.Sequential(nn.Linear(9 * channels, 16), nn.LayerNorm(16), nn.ReLU(), nn.Flatten())

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        features: torch.Tensor = self.layers(obs.unfold(1, 3, 1).unfold(2, 3, 1).flatten(3))  # [B, H', W', C·9]
        return features


LAYERS = {
    "conv2d": small_image(norm=True),
    "patches": {"features_extractor_class": Patches, "net_arch": [128]},
}


def model_of(env_id: str, layers: str) -> PQN:
    """By PQN's preset, but with a learning rate that stays."""
    preset = presets.for_environment(env_id, "pqn")
    settings = preset.hyperparameters | {"learning_rate": 5e-4, "policy_kwargs": LAYERS[layers]}
    model = PQN("MlpPolicy", Stopwatch(make_envs(env_id, preset.n_envs)), **settings, seed=0, device="cpu")
    assert (model.n_envs, model.n_steps) == (N_ENVS, N_STEPS)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("env")
    parser.add_argument("--layers", choices=list(LAYERS), default="conv2d")
    options = parser.parse_args()
    model = model_of(options.env, options.layers)
    envs = model.env
    assert isinstance(envs, Stopwatch)
    found = []
    for i in range(ITERATIONS + 1):
        with envs.timed() as times:
            model.learn(N_ENVS * N_STEPS, reset_num_timesteps=i == 0, log_interval=None)
        found.append(times)
    ms = {part: statistics.median(times[part] for times in found[1:]) for part in found[0]}
    print(json.dumps({"ms": ms, "total_ms": sum(ms.values()), "peak_gb": peak_memory()}))


if __name__ == "__main__":
    main()
