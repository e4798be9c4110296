"""StaQ, or a variant, deep in a run, stack and replay full, timed phase by phase.

    python -m benchmarks.scenario CartPole-v1 --memory-size 300
    python -m benchmarks.scenario CartPole-v1 --algo ac-mproj
    python -m benchmarks.scenario CartPole-v1 --without "the dense kernel"

One process per scenario, so that its peak memory is its own. The last line is JSON: milliseconds per environment
step of each phase, and the peak memory.
"""

from __future__ import annotations

import argparse
import json

import torch

from benchmarks.ablations import ABLATIONS
from staq import registry
from staq.experiments.timing import BATCH_SIZE, BUFFER_SIZE, SAMPLES, STEPS, full_model, measured, peak_memory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("env")
    parser.add_argument("--algo", choices=registry.ours(), default="staq")
    parser.add_argument("--memory-size", type=int, default=300)
    parser.add_argument("--merged-into", type=int, help="networks that stand for memory-size pushes")
    parser.add_argument("--n-envs", type=int, default=50)
    parser.add_argument("--batch-size", type=int, default=BATCH_SIZE)
    parser.add_argument("--buffer-size", type=int, default=BUFFER_SIZE)
    parser.add_argument("--width", type=int, help="of the fully connected layers")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--steps", type=int, default=STEPS, help="of a shortened iteration")
    parser.add_argument("--samples", type=int, default=SAMPLES)
    parser.add_argument("--without", choices=list(ABLATIONS), help="an optimisation to switch off")
    options = vars(parser.parse_args())
    without = options.pop("without")
    if without is not None:
        ABLATIONS[without]()
    torch.set_num_threads(options.pop("threads"))
    steps, samples, env_id = options.pop("steps"), options.pop("samples"), options.pop("env")
    model = full_model(env_id, **options)
    ms = measured(model, steps, samples)
    print(json.dumps({"ms": ms, "total_ms": sum(ms.values()), "peak_gb": peak_memory()}))


if __name__ == "__main__":
    main()
