"""What a checkpoint costs, in time and on disk, with stack and replay full.

python -m benchmarks.checkpoints CartPole-v1
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

from staq import Checkpoints
from staq.experiments.timing import full_model, measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("env")
    parser.add_argument("--memory-size", type=int, default=300)
    options = parser.parse_args()
    model = full_model(options.env, options.memory_size)
    iteration = 5 * sum(measured(model, 600, 1).values())  # seconds of a whole one
    seconds = []
    with tempfile.TemporaryDirectory() as name:
        checkpoints = Checkpoints(name)
        checkpoints.init_callback(model)
        for _ in range(3):  # the first writes everything, the next only what has changed
            start = time.perf_counter()
            checkpoints.write()
            seconds.append(time.perf_counter() - start)
        disk = sum(path.stat().st_size for path in Path(name).iterdir())
    improvement, replay = model.policy.improvement, model.replay
    tensors = [*(getattr(replay, part) for part in replay.transition), replay.accumulated.values]
    tensors += [w for name in improvement.frozen_names() for w in improvement.frozen(name).values()]
    tensors += list(model.policy.q_net.parameters()) * 3  # Adam keeps two moments of each
    state = sum(t.numel() * t.element_size() for t in tensors)
    print(
        json.dumps(
            {"seconds": seconds[-1], "share_of_iteration": seconds[-1] / iteration, "disk_over_state": disk / state}
        )
    )


if __name__ == "__main__":
    main()
