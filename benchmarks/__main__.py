"""Milliseconds per environment step and phase with stack and replay full, and the cost of checkpoints.

    python -m benchmarks [--memory-sizes 1 300] [--envs CartPole-v1 MinAtar/SpaceInvaders-v1]

The paper's settings, 50 environments. One iteration is timed after one that warms up. Compare figures of one run only:
machines differ, and so do their moods.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import torch
from stable_baselines3.common.callbacks import BaseCallback

from staq import Checkpoints, StaQ, presets
from staq.runs import make_envs


class Stopwatch(BaseCallback):
    """Seconds of each whole iteration, without the checkpoints that are written in between."""

    def __init__(self) -> None:
        super().__init__()
        self.iterations: list[dict[str, float]] = []

    def _on_training_start(self) -> None:
        model = self.model
        report = model.report

        def reporting(log_interval: int | None) -> None:
            self.iterations.append(dict(model.phase_seconds))
            report(log_interval)

        model.report = reporting

    def _on_step(self) -> bool:
        return True


class TimedCheckpoints(Checkpoints):
    """Seconds of each checkpoint."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.seconds: list[float] = []

    def write(self) -> None:
        start = time.perf_counter()
        super().write()
        self.seconds.append(time.perf_counter() - start)


def full_model(env_id: str, memory_size: int) -> StaQ:
    """A model as it is deep in a run: M networks on the stack, 50,000 transitions in the replay."""
    preset = presets.for_environment(env_id)
    settings = preset.hyperparameters | {"memory_size": memory_size}
    model = StaQ(preset.policy, make_envs(env_id, 50), seed=0, device="cpu", **settings)
    model.learn(model.policy_update_interval)
    replay, stack = model.replay, model.policy.policy_update.stack
    for name in (*replay.TRANSITION, "accumulated"):
        rows = getattr(replay, name)
        rows[:] = rows[:5000].repeat(len(rows) // 5000, *[1] * (rows.dim() - 1))
    replay.full, replay.pos = True, 0
    while len(stack) < memory_size:
        stack.push(model.policy.q_net.weights, model.step_size.beta)
    return model


def size_on_disk(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--envs", nargs="+", default=["CartPole-v1", "MinAtar/SpaceInvaders-v1"])
    parser.add_argument("--memory-sizes", nargs="+", type=int, default=[1, 300])
    options = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads; ms per environment step")
    print(
        f"{'':28}{'M':>5}{'total':>8}{'collect':>9}{'targets':>9}{'gradient':>9}{'improve':>9}  checkpoint   disk/state"
    )
    for env_id in options.envs:
        for memory_size in options.memory_sizes:
            report(env_id, memory_size)


def report(env_id: str, memory_size: int) -> None:
    model = full_model(env_id, memory_size)
    interval = model.policy_update_interval
    with tempfile.TemporaryDirectory() as name:
        stopwatch, checkpoints = Stopwatch(), TimedCheckpoints(Path(name))
        model.learn(3 * interval, callback=[checkpoints, stopwatch], reset_num_timesteps=False)
        disk = size_on_disk(Path(name))
    phases = stopwatch.iterations[-1]
    total = sum(phases.values())
    stack, replay = model.policy.policy_update.stack, model.replay
    tensors = [getattr(replay, part) for part in (*replay.TRANSITION, "accumulated")]
    tensors += [w for push in stack.kept_pushes for w in stack.ensemble(push).values()]
    tensors += list(model.policy.q_net.parameters()) * 3  # Adam keeps two moments of each
    state = sum(t.numel() * t.element_size() for t in tensors)
    ms = {phase: 1000 * seconds / interval for phase, seconds in phases.items()}
    figures = "".join(f"{ms[phase]:9.3f}" for phase in ("collect", "targets", "gradient", "improve"))
    share = 100 * checkpoints.seconds[-1] / total
    print(
        f"{env_id:28}{memory_size:5d}{1000 * total / interval:8.3f}{figures}  {checkpoints.seconds[-1]:5.2f} s = "
        f"{share:.1f} % of its iteration  {disk / state:.2f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
