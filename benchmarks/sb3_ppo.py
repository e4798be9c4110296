"""SB3's PPO with the network, the environments and the rollouts of StaQ's λ-returns.

    python -m benchmarks.sb3_ppo MinAtar/Breakout-v1

The last line is JSON: milliseconds per environment step in the environments, and outside of them.
"""

from __future__ import annotations

import argparse
import json
import statistics

from stable_baselines3 import PPO

from benchmarks.lambda_returns import ITERATIONS, N_ENVS, N_STEPS, Stopwatch
from staq.baselines.networks import small_image
from staq.envs.make import make_envs
from staq.experiments.timing import peak_memory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("env")
    env_id = parser.parse_args().env
    envs = Stopwatch(make_envs(env_id, N_ENVS))
    model = PPO(
        "MlpPolicy",
        envs,
        n_steps=N_STEPS,
        batch_size=256,
        n_epochs=3,
        policy_kwargs=small_image(),
        seed=0,
        device="cpu",
    )
    found = []
    for i in range(ITERATIONS + 1):
        with envs.timed() as times:
            model.learn(N_ENVS * N_STEPS, reset_num_timesteps=i == 0, log_interval=None)  # type: ignore[arg-type]
        found.append(times)
    ms = {part: statistics.median(times[part] for times in found[1:]) for part in found[0]}
    print(json.dumps({"ms": ms, "total_ms": sum(ms.values()), "peak_gb": peak_memory()}))


if __name__ == "__main__":
    main()
