"""Stable-Baselines3's DQN with StaQ's network and batch, one update per environment step.

    python -m benchmarks.sb3_dqn MinAtar/SpaceInvaders-v1

Its critic is one network where StaQ trains two.
"""

from __future__ import annotations

import argparse
import json

from staq.experiments.timing import dqn_like_staq, dqn_ms, peak_memory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("env")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--samples", type=int, default=2)
    options = parser.parse_args()
    print(
        json.dumps(
            {"total_ms": dqn_ms(dqn_like_staq(options.env), options.steps, options.samples), "peak_gb": peak_memory()}
        )
    )


if __name__ == "__main__":
    main()
