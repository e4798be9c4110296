"""Stable-Baselines3's DQN with StaQ's network and batch, one update per environment step.

    python -m benchmarks.sb3_dqn MinAtar/SpaceInvaders-v1

Its critic is one network where StaQ trains two.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

from stable_baselines3 import DQN

from benchmarks.scenario import peak_memory
from staq.rivals import SmallImage
from staq.runs import make_envs


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
