"""StaQ on λ-returns with M networks on its stack, timed phase by phase.

    python -m benchmarks.lambda_returns MinAtar/Breakout-v1 --memory-size 1
    python -m benchmarks.lambda_returns ALE/Pong-v5 --memory-size 300 --n-critics 2 --interval 256 --iterations 1

The last line is JSON: milliseconds per environment step of each phase, and the peak memory.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper

from staq import StaQ
from staq.cli import presets
from staq.envs.make import make_envs
from staq.experiments.timing import MERGING, Timed, fill_stack, keep_phases, peak_memory
from staq.policy_improvement.stack import Stack

N_ENVS, N_STEPS, EPOCHS, MINIBATCH = 128, 32, 2, 128
"""Of the preset minatar-lambda, for those it is compared with."""
ITERATIONS = 10


class Stopwatch(VecEnvWrapper):
    """Says how much of a time was spent in the environments."""

    def __init__(self, venv: VecEnv) -> None:
        super().__init__(venv)
        self.seconds, self.steps = 0.0, 0

    def reset(self) -> Any:
        return self.venv.reset()

    def step_wait(self) -> Any:
        start = time.perf_counter()
        found = self.venv.step_wait()  # where environments that are stepped one after the other do all their work
        self.seconds += time.perf_counter() - start
        self.steps += self.num_envs
        return found

    @contextmanager
    def timed(self) -> Iterator[dict[str, float]]:
        """Fills in milliseconds per environment step."""
        found: dict[str, float] = {}
        start, self.seconds, self.steps = time.perf_counter(), 0.0, 0
        yield found
        per_step = 1000 / self.steps
        found["env"] = per_step * self.seconds
        found["outside"] = per_step * (time.perf_counter() - start) - found["env"]


def full_model(env_id: str, memory_size: int, merged_into: int | None = None, **changes: Any) -> StaQ:
    """As it is deep in a run: M untrained networks on the stack, or fewer that stand for as many pushes.

    :param changes: of the preset's hyperparameters
    """
    preset = presets.for_environment(env_id, evaluation="lambda")
    memory: dict[str, Any] = {"memory_size": memory_size} if merged_into is None else MERGING
    settings = preset.hyperparameters | memory | {"seed": 0, "device": "cpu"} | changes
    model = StaQ(preset.policy, Stopwatch(make_envs(env_id, preset.n_envs)), **settings)
    fill_stack(model, memory_size, merged_into)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("env")
    parser.add_argument("--memory-size", type=int, default=1)
    parser.add_argument("--merged-into", type=int, help="networks that stand for memory-size pushes")
    parser.add_argument("--n-critics", type=int, default=1)
    parser.add_argument(
        "--interval", type=int, help="environment steps of a rollout, where the preset's takes too long"
    )
    parser.add_argument("--iterations", type=int, default=ITERATIONS)
    options = parser.parse_args()
    changes = {"n_critics": options.n_critics} | (
        {} if options.interval is None else {"policy_update_interval": options.interval}
    )
    model = full_model(options.env, options.memory_size, options.merged_into, **changes)
    envs, phases, steps = model.env, keep_phases(model), model.policy_update_interval
    improvement = model.policy.improvement
    assert isinstance(improvement, Stack)
    merging = Timed(improvement.merging, "merge_due")
    assert isinstance(envs, Stopwatch)
    found = []
    for _ in range(options.iterations + 1):
        with envs.timed() as times:
            model.learn(steps, reset_num_timesteps=model.iteration == 0, log_interval=None)
        parts = {phase: 1000 * seconds / steps for phase, seconds in phases[-1].items()}
        acting = parts.pop("collect") - times["env"]
        merge = 1000 * merging.take() / steps
        parts = {"env": times["env"], "acting": acting, **parts, "improve": parts["improve"] - merge, "merge": merge}
        found.append(parts | {"rest": times["env"] + times["outside"] - sum(parts.values())})
    ms = {part: statistics.median(times[part] for times in found[1:]) for part in found[0]}
    ms["merge"] = statistics.mean(times["merge"] for times in found[1:])  # of which some iterations have none
    print(json.dumps({"ms": ms, "total_ms": sum(ms.values()), "peak_gb": peak_memory()}))


if __name__ == "__main__":
    main()
