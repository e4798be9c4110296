"""What a run costs deep in it: stack and replay full, timed phase by phase."""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import BaseCallback

from staq import StaQ
from staq.baselines.networks import small_image
from staq.cli import presets
from staq.cli.runs import Config, build
from staq.envs.make import make_envs
from staq.experience.accumulated_logits import Accumulate
from staq.loop import PolicyMirrorDescent
from staq.networks.architecture import Weights
from staq.networks.conv_mlp import ConvMlp
from staq.networks.ensemble import QEnsemble
from staq.policy_improvement.merging import pair_due
from staq.policy_improvement.q_stack import QStack
from staq.policy_improvement.stack import Stack
from staq.registry import ALGORITHMS

N_CRITICS, BATCH_SIZE, BUFFER_SIZE, INTERVAL, WINDOW = 2, 256, 50_000, 5000, 200
"""The paper's settings: an iteration is INTERVAL environment steps, a window what lies between two hard copies."""
STEPS, SAMPLES = 600, 2
"""Environment steps of a shortened iteration, and how many are measured, after one to warm up."""
PHASES = ("acting", "env", "targets", "gradient", "refresh", "push", "merge")
MERGING: dict[str, Any] = {"memory_size": None, "compression": "merge"}
Phases = dict[str, float]


def keep_phases(model: PolicyMirrorDescent) -> list[Phases]:
    """Makes a model keep the seconds of every iteration's phases instead of logging them."""
    iterations: list[Phases] = []

    def report(log_interval: int | None) -> None:
        iterations.append(model.phases.take())

    model.report = report  # type: ignore[method-assign]
    return iterations


class Timed:
    """Adds up the seconds that are spent in one method of one object; none where there is no such object."""

    def __init__(self, owner: Any, name: str) -> None:
        self.seconds = 0.0
        if owner is None:
            return
        method = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            result = method(*args, **kwargs)
            self.seconds += time.perf_counter() - start
            return result

        setattr(owner, name, timed)

    def take(self) -> float:
        seconds, self.seconds = self.seconds, 0.0
        return seconds


def network(env_id: str) -> ConvMlp:
    """The paper's network for an environment."""
    model = StaQ(presets.for_environment(env_id).policy, make_envs(env_id, 1), memory_size=1, buffer_size=1)
    assert isinstance(model.policy.architecture, ConvMlp)
    return model.policy.architecture


def full_model(
    env_id: str,
    memory_size: int = 300,
    n_envs: int = 50,
    width: int | None = None,
    algo: str = "staq",
    merged_into: int | None = None,
    **settings: Any,
) -> PolicyMirrorDescent:
    """A model as it is deep in a run: M untrained networks on the stack, the replay full of one iteration's states.

    :param merged_into: how many networks stand for the M pushes, of a stack that merges
    """
    preset = presets.for_environment(env_id)
    if width is not None:
        settings["policy_kwargs"] = {"net_arch": [width] if preset.policy == "CnnPolicy" else [width, width]}
    if algo == "staq":
        settings |= {"memory_size": memory_size} if merged_into is None else MERGING
    settings = preset.hyperparameters | {"device": "cpu"} | settings | {"gradient_steps": 1, "seed": 0}
    model = ALGORITHMS[algo].load()(preset.policy, make_envs(env_id, n_envs), **settings)
    model.collect(_started(model))
    replay = model.replay
    for rows in (*(getattr(replay, name) for name in replay.transition), replay.accumulated.values):
        rows[:] = rows[torch.arange(len(rows)) % INTERVAL]
    replay.full, replay.pos = True, 0
    if isinstance(model.policy.improvement, Stack):
        fill_stack(model, memory_size, merged_into)
    model._begin_iteration()
    model.gradient_steps = -1
    return model


def fill_stack(model: PolicyMirrorDescent, pushes: int, merged_into: int | None = None) -> None:
    """Puts untrained networks on the stack: one for every push, or fewer, alike as neighbours are, for all of them."""
    stack: QStack = model.policy.improvement.stack  # type: ignore[assignment]
    architecture, n_critics = model.policy.architecture, model.shared.n_critics
    sizes = [1] * pushes if merged_into is None else merged_sizes(pushes, merged_into)
    last = list(accumulate(sizes))
    spans = [[end - size, end - 1] for end, size in zip(last, sizes, strict=True)]
    beta = model.step_size.beta
    weights = [sum(beta ** (pushes - 1 - push) for push in range(first, end + 1)) for first, end in spans]
    first = QEnsemble(architecture, n_critics).weights

    def networks() -> Iterator[Weights]:
        for _ in sizes:
            other = QEnsemble(architecture, n_critics).weights
            yield other if merged_into is None else {name: w.lerp(other[name], 1e-2) for name, w in first.items()}

    stack.restore(pushes, weights, stack.prefactor, networks(), spans)


def merged_sizes(pushes: int, networks: int) -> list[int]:
    """Pushes per entry of an exponential histogram, oldest first; the largest in halves where merges were refused."""
    sizes: list[int] = []
    for _ in range(pushes):
        sizes.append(1)
        while (start := pair_due(sizes, len(sizes))) is not None:
            sizes[start : start + 2] = [2 * sizes[start]]
    while len(sizes) < networks:
        at = sizes.index(max(sizes))
        sizes[at : at + 1] = [sizes[at] - sizes[at] // 2, sizes[at] // 2]
    return sizes


def _started(model: PolicyMirrorDescent) -> BaseCallback:
    _, callback = model._setup_learn(INTERVAL)
    return callback


def measured(model: PolicyMirrorDescent, steps: int, samples: int) -> Phases:
    """Milliseconds per environment step of each phase: the median of shortened iterations, after one to warm up.

    A shortened iteration collects and learns for ``steps`` steps but improves the policy once, as a whole one
    does: that part is divided by the steps of a whole iteration. So is the evaluation of next states that nobody acted
    on, of which a whole iteration has as many at its end, and more from episodes that end on the way.
    """
    model.policy_update_interval = steps
    assert model.env is not None
    improvement, iterations = model.policy.improvement, keep_phases(model)
    env = Timed(model.env, "step")
    pending, n_pending = Timed(model.experience, "complete"), _counted(model)
    parts = (improvement.stack, improvement.merging) if isinstance(improvement, Stack) else (None, None)
    push, merging = Timed(parts[0], "push"), Timed(parts[1], "merge_due")
    found: list[Phases] = []
    for _ in range(samples + 1):
        model.learn(steps, reset_num_timesteps=False, log_interval=None)
        spent, in_env, in_push, in_merging = iterations[-1], env.take(), push.take(), merging.take()
        in_pending, n_envs = pending.take(), model.env.num_envs
        whole = in_pending * (n_envs + (n_pending[-1] - n_envs) * INTERVAL / steps) / n_pending[-1]
        found.append(
            {
                "acting": (spent["collect"] - in_env - in_pending) / steps + whole / INTERVAL,
                "env": in_env / steps,
                "targets": spent["targets"] / steps,
                "gradient": spent["gradient"] / steps,
                "refresh": (spent["improve"] - in_push - in_merging) / INTERVAL,
                "push": in_push / INTERVAL,
                "merge": in_merging / INTERVAL,
            }
        )
    return {phase: 1000 * statistics.median(sample[phase] for sample in found[1:]) for phase in PHASES}


def _counted(model: PolicyMirrorDescent) -> list[int]:
    """Makes a model keep how many next states each iteration left to be evaluated at its end."""
    counts: list[int] = []
    complete = model.experience.complete

    def counting(accumulate: Accumulate) -> None:
        counts.append(int(model.replay.accumulated.pending.sum()))
        complete(accumulate)

    model.experience.complete = counting
    return counts


def cpu_name() -> str:
    """As Linux tells it, or as Python does elsewhere."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def peak_memory() -> float:
    """Of this process, in GB."""
    import resource  # which Windows has not, where all else of this module is of use

    unit = 1 if platform.system() == "Darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9


def dqn_like_staq(env_id: str) -> DQN:
    """SB3's DQN with StaQ's network and batch, one update per step. Its critic is one network where StaQ trains two."""
    board = env_id.startswith("MinAtar/")
    return DQN(
        "MlpPolicy",
        make_envs(env_id, 1),
        buffer_size=BUFFER_SIZE,
        batch_size=BATCH_SIZE,
        train_freq=1,
        gradient_steps=1,
        policy_kwargs=small_image() if board else {"net_arch": [256, 256]},
        seed=0,
        device="cpu",
    )


def dqn_ms(model: DQN, steps: int, samples: int) -> float:
    """Milliseconds per environment step of a DQN deep in a run, its replay full: the median, after one to warm up."""
    model.learning_starts = 0
    model.learn(model.batch_size)
    buffer = model.replay_buffer
    assert buffer is not None
    for rows in (
        *(buffer.observations, buffer.next_observations, buffer.actions),
        *(buffer.rewards, buffer.dones, buffer.timeouts),
    ):
        rows[:] = rows[np.arange(len(rows)) % buffer.pos]
    buffer.full = True
    found = []
    for _ in range(samples + 1):
        start = time.perf_counter()
        model.learn(steps, reset_num_timesteps=False, log_interval=10**9)
        found.append(1000 * (time.perf_counter() - start) / steps)
    return statistics.median(found[1:])


def of_run(config: Config, steps: int = STEPS) -> dict[str, Any]:
    """The milliseconds per environment step of a run's configuration, by phase where it has phases."""
    torch.set_num_threads(config.threads)
    ms: Phases = {}
    if config.algo == "dqn":
        model = build(config, make_envs(config.env, config.n_envs))
        assert isinstance(model, DQN)
        total = dqn_ms(model, steps, SAMPLES)
    else:
        settings = config.hyperparameters | {"device": config.device}
        ours = full_model(config.env, settings.pop("memory_size", 300), config.n_envs, algo=config.algo, **settings)
        # An actor takes thousands of gradient steps per iteration however short that is: one sample of them will do.
        ms = measured(ours, steps, SAMPLES if isinstance(ours.policy.improvement, Stack) else 1)
        total = sum(ms.values())
    machine = f"{cpu_name()}, {config.threads} threads, {config.device}"
    return {"total_ms": total, "ms": ms, "peak_gb": peak_memory(), "machine": machine}
