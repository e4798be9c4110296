"""Runs of seconds, and folders of finished ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from staq.cli.rollouts import Returns, read_rows, write_rows
from staq.cli.runs import Config
from staq.experiments.record import FINISHED, Planned, folder_of

TINY: dict[str, Any] = {
    "policy_update_interval": 200,
    "batch_size": 32,
    "buffer_size": 500,
    "target_update_interval": 50,
    "policy_kwargs": {"net_arch": [8]},
}


def tiny(out: Path, seeds: int = 2, env: str = "CartPole-v1", steps: int = 800) -> list[Planned]:
    """Runs of seconds."""
    return [
        Planned(
            name,
            Config(
                env=env,
                policy="MlpPolicy",
                hyperparameters=TINY | {"memory_size": memory_size},
                preset="classic",
                timesteps=steps,
                seed=seed,
                n_envs=4,
                eval_every=400,
                eval_episodes=2,
                threads=1,
            ),
            folder_of(out, env, name, seed),
        )
        for seed in range(seeds)
        for name, memory_size in (("StaQ M=1", 1), ("StaQ M=2", 2))
    ]


def rows_of(runs: list[Planned]) -> list[list[tuple[Any, ...]]]:
    """Everything that does not depend on the time of day."""
    return [[(r.timesteps, r.mode, r.mean, r.std, r.minimum) for r in read_rows(run.folder)] for run in runs]


def lay(run: Planned, last: float, seconds: float = 0.0) -> None:
    """A finished run's folder."""
    run.folder.mkdir(parents=True)
    run.config.save(run.folder, "")
    timesteps = run.config.timesteps
    rows = [Returns(timesteps, mode, 1, last, 0.0, last, 1.0, seconds) for mode in ("greedy", "stochastic")]
    write_rows(run.folder, rows)
    (run.folder / FINISHED).touch()
