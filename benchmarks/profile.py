"""Where the time of an iteration goes, operator by operator.

python -m benchmarks.profile MinAtar/SpaceInvaders-v1 [--memory-size 300] [--trace trace.json]
"""

from __future__ import annotations

import argparse
from pathlib import Path

from torch.profiler import ProfilerActivity, profile

from staq import registry
from staq.experiments.timing import full_model
from staq.loop import PolicyMirrorDescent

ACTS = ("collect", "evaluate", "improve")
STEPS = 400


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("env", nargs="?", default="MinAtar/SpaceInvaders-v1")
    parser.add_argument("--algo", choices=registry.ours(), default="staq")
    parser.add_argument("--memory-size", type=int, default=300)
    parser.add_argument("--rows", type=int, default=15, help="operators per act")
    parser.add_argument("--trace", type=Path, help="a file for Perfetto or chrome://tracing")
    options = parser.parse_args()
    model = full_model(options.env, options.memory_size, algo=options.algo)
    model.policy_update_interval = STEPS
    model.learn(STEPS, reset_num_timesteps=False, log_interval=None)
    profiled = {act: profile(activities=[ProfilerActivity.CPU], record_shapes=True) for act in ACTS}
    for act, profiler in profiled.items():
        around(model, act, profiler)
    model.learn(STEPS, reset_num_timesteps=False, log_interval=None)
    for act, profiler in profiled.items():
        print(f"\n{act}: {STEPS} environment steps of {options.env}, M = {options.memory_size}")
        table = profiler.key_averages(group_by_input_shape=True)
        print(table.table(sort_by="self_cpu_time_total", row_limit=options.rows, max_shapes_column_width=60))
    if options.trace:
        profiled["evaluate"].export_chrome_trace(str(options.trace))


def around(model: PolicyMirrorDescent, act: str, profiler: profile) -> None:
    """Profiles one act of the loop."""
    method = getattr(model, act)

    def profiled(*args: object) -> object:
        with profiler:
            return method(*args)

    setattr(model, act, profiled)


if __name__ == "__main__":
    main()
