"""Job-shop scheduling with forbidden actions: StaQ with masks beside MaskablePPO beside StaQ without them.

    python examples/scheduling.py --seconds 60 --seeds 3 --out scheduling

Every job is a sequence of operations, each on a machine of its own. An action dispatches the next operation of a job,
as early as its job and its machine are free; a job that is done cannot be dispatched, which is what the mask says.
The makespan is when the last operation ends, and the reward is how little each dispatch delays it. Instances are drawn
anew in every episode. Each method trains for the same CPU time on one thread, and is judged on instances that it has
never seen. Writes a row for each training and a picture of a schedule, and prints a table.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import gymnasium
import matplotlib
import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

from staq import ActionMasks, StaQ

matplotlib.use("Agg")
from matplotlib import pyplot as plt

N_ENVS, TEST_INSTANCES = 64, 200
CALIBRATION = 5.0
"""Seconds in which a method shows how many steps it takes in the rest."""


class JobShop(gymnasium.Env[np.ndarray, int]):
    """Dispatches jobs until all are done.

    :param masked: whether forbidden actions are told; otherwise one costs as much as a mean operation and does nothing
    """

    def __init__(self, n_jobs: int = 8, n_machines: int = 5, longest: int = 9, masked: bool = True) -> None:
        self.n_jobs, self.n_machines, self.longest, self.masked = n_jobs, n_machines, longest, masked
        # Of each job: share done, work left, when it is free, its next operation's length and machine; of each machine:
        # when it is free, work left.
        size = n_jobs * (4 + n_machines) + 2 * n_machines
        self.observation_space = spaces.Box(-np.inf, np.inf, (size,), dtype=np.float32)
        self.action_space = spaces.Discrete(n_jobs)  # type: ignore[assignment]
        if masked:
            self.action_masks = self.allowed  # as sb3-contrib looks for it

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        shape = self.n_jobs, self.n_machines
        self.machine = self.np_random.permuted(np.tile(np.arange(self.n_machines), (self.n_jobs, 1)), axis=1)
        self.length = self.np_random.integers(1, self.longest + 1, shape)
        self.done = np.zeros(self.n_jobs, dtype=int)
        self.job_free, self.machine_free = np.zeros(self.n_jobs), np.zeros(self.n_machines)
        self.operations: list[tuple[int, int, float, float]] = []
        """Job, machine, start and end of what was dispatched."""
        return self._observation(), {}

    def allowed(self) -> np.ndarray:
        """Jobs that are not done."""
        found: np.ndarray = self.done < self.n_machines
        return found

    @property
    def makespan(self) -> float:
        return float(self.job_free.max())

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        scale = (self.longest + 1) / 2
        if not self.allowed()[action]:
            assert not self.masked, f"job {action} is done"
            return self._observation(), -1.0, False, False, {}
        before, operation = self.makespan, self.done[action]
        machine, length = self.machine[action, operation], self.length[action, operation]
        start = max(self.job_free[action], self.machine_free[machine])
        self.job_free[action] = self.machine_free[machine] = start + length
        self.done[action] += 1
        self.operations.append((int(action), int(machine), float(start), float(start + length)))
        ended = not self.allowed().any()
        info = {"makespan": self.makespan} if ended else {}
        return self._observation(), (before - self.makespan) / scale, ended, False, info

    def _observation(self) -> np.ndarray:
        scale, first = float(self.longest * self.n_machines), self.machine_free.min()
        left = np.where(np.arange(self.n_machines) >= self.done[:, None], self.length, 0)
        next_operation = np.minimum(self.done, self.n_machines - 1)
        rows = np.arange(self.n_jobs)
        next_length = np.where(self.allowed(), self.length[rows, next_operation], 0)
        on = np.eye(self.n_machines)[self.machine[rows, next_operation]] * self.allowed()[:, None]
        of_machine = np.bincount(self.machine.ravel(), weights=left.ravel(), minlength=self.n_machines)
        parts = [
            self.done / self.n_machines,
            left.sum(1) / scale,
            (self.job_free - first) / scale,
            next_length / self.longest,
            on.ravel(),
            (self.machine_free - first) / scale,
            of_machine / scale,
        ]
        return np.concatenate(parts).astype(np.float32)


class StopAfter(BaseCallback):
    """Ends a training after so many seconds."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def _on_training_start(self) -> None:
        self.end = time.process_time() + self.seconds

    def _on_step(self) -> bool:
        return time.process_time() < self.end


def make(method: str, seed: int) -> Any:
    """A model of one of the three methods, with 64 environments each."""
    wrapper = ActionMasks if method == "StaQ" else None
    settings = {"masked": method != "StaQ without masks"}
    envs = make_vec_env(JobShop, N_ENVS, seed=seed, env_kwargs=settings, wrapper_class=wrapper)
    common: dict[str, Any] = {"seed": seed, "device": "cpu", "policy_kwargs": {"net_arch": [256, 256]}, "gamma": 0.99}
    if method == "MaskablePPO":
        from sb3_contrib import MaskablePPO

        # Of the few settings tried on seeds 100 and 101 the best: as many steps per update as StaQ's rollouts.
        return MaskablePPO("MlpPolicy", envs, n_steps=32, batch_size=256, n_epochs=4, learning_rate=5e-4, **common)
    return StaQ("MlpPolicy", envs, evaluation="lambda", **common)


def trained(method: str, seed: int, seconds: float) -> tuple[Any, int, float]:
    """A model, its environment steps and the seconds that they took."""
    probe = make(method, seed)
    probe.learn(10**9, callback=StopAfter(CALIBRATION), log_interval=None)
    model = make(method, seed)
    start = time.process_time()
    model.learn(round(probe.num_timesteps / CALIBRATION * seconds), log_interval=None)
    return model, model.num_timesteps, time.process_time() - start


def test_instances(masked: bool) -> list[JobShop]:
    """The same for every method, and none that anybody trained on."""
    found = [JobShop(masked=masked) for _ in range(TEST_INSTANCES)]
    for i, env in enumerate(found):
        env.reset(seed=10_000_019 + i)
    return found


def schedules(model: Any) -> list[JobShop]:
    """The test instances, scheduled greedily."""
    envs = test_instances(masked=True)
    while going := [env for env in envs if env.allowed().any()]:
        obs, masks = (
            np.stack(values) for values in zip(*((e._observation(), e.allowed()) for e in going), strict=True)
        )
        # A policy without masks gets them here: it would otherwise dispatch a finished job for ever.
        actions, _ = model.predict(obs, deterministic=True, action_masks=masks)
        for env, action in zip(going, actions, strict=True):
            env.step(int(action))
    return envs


def by_rule(rule: str) -> float:
    """Mean makespan of a classical rule: the shortest next operation, or the most work left, first."""
    envs = test_instances(masked=True)
    for env in envs:
        while env.allowed().any():
            next_length = env.length[np.arange(env.n_jobs), np.minimum(env.done, env.n_machines - 1)]
            left = np.where(np.arange(env.n_machines) >= env.done[:, None], env.length, 0).sum(1)
            score = -next_length if rule == "shortest operation first" else left
            env.step(int(np.where(env.allowed(), score, -np.inf).argmax()))
    return statistics.mean(env.makespan for env in envs)


def draw(env: JobShop, out: Path) -> None:
    """A Gantt chart: machines from top to bottom, jobs by colour."""
    figure, axes = plt.subplots(figsize=(9, 3), layout="constrained")
    colours = plt.get_cmap("tab10")
    for job, machine, start, end in env.operations:
        axes.barh(machine, end - start, left=start, color=colours(job % 10), edgecolor="white")
        axes.text((start + end) / 2, machine, str(job), ha="center", va="center", fontsize=8, color="white")
    axes.set(yticks=range(env.n_machines), xlabel="time", ylabel="machine")
    axes.set_title(f"{env.n_jobs} jobs on {env.n_machines} machines: makespan {env.makespan:g}")
    axes.invert_yaxis()
    figure.savefig(out, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="training of each method and seed (%(default)s)")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--methods", nargs="+", default=["StaQ", "MaskablePPO", "StaQ without masks"])
    parser.add_argument("--out", type=Path, default=Path("scheduling"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    rules = {rule: by_rule(rule) for rule in ("shortest operation first", "most work first")}
    rows: list[dict[str, Any]] = []
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        for method in options.methods:
            model, steps, seconds = trained(method, seed, options.seconds)
            found = schedules(model)
            row = {"method": method, "seed": seed, "steps": steps, "seconds": round(seconds, 1)}
            rows.append(row | {"makespan": statistics.mean(env.makespan for env in found)})
            print(json.dumps(rows[-1]), flush=True)
            if method == "StaQ":
                draw(found[0], options.out / "schedule.png")
    (options.out / "rows.json").write_text(json.dumps({"rules": rules, "rows": rows}, indent=2) + "\n")
    print(f"\nmean makespan of {TEST_INSTANCES} unseen instances, and its standard deviation over seeds")
    for rule, makespan in rules.items():
        print(f"{rule:26} {makespan:6.2f}")
    for method in options.methods:
        values = [row["makespan"] for row in rows if row["method"] == method]
        spread = statistics.stdev(values) if len(values) > 1 else float("nan")
        print(f"{method:26} {statistics.mean(values):6.2f} ± {spread:.2f}")


if __name__ == "__main__":
    main()
