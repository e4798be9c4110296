"""From an experiment to its runs: which there are, where they lie, and how far each of them is."""

from __future__ import annotations

import csv
import json
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from staq import presets, timing
from staq.evaluation import read_rows
from staq.experiments import Experiment, Variant
from staq.runs import Config, configured
from staq.timing import INTERVAL
from staq.whole_files import replace_text

State = Literal["planned", "begun", "finished", "failed"]
ERROR = "error.txt"
TIMING = "timing.json"
EVALUATIONS = 50
"""Evaluations of a run, at any budget that leaves as many iterations."""


@dataclass(frozen=True)
class Planned:
    """One run of an experiment."""

    variant: str
    config: Config
    folder: Path
    timed: bool = False
    """To be timed, not trained."""

    @property
    def state(self) -> State:
        """By what lies in its folder: any machine can tell, and copying folders merges results."""
        if (self.folder / (TIMING if self.timed else "model")).exists():
            return "finished"
        if (self.folder / ERROR).exists():
            return "failed"
        return "begun" if (self.folder / "config.json").exists() else "planned"

    @property
    def steps_done(self) -> int:
        """As of the last line of its log."""
        if self.state == "finished":
            return self.config.timesteps
        path = self.folder / "progress.csv"
        if not path.exists():
            return 0
        with path.open() as file:
            lines = [row for row in csv.DictReader(file) if row.get("time/total_timesteps")]
        return int(lines[-1]["time/total_timesteps"]) if lines else 0

    @property
    def seconds(self) -> float:
        """Of training until its last evaluation."""
        rows = read_rows(self.folder)
        return rows[-1].seconds if rows else 0.0

    @property
    def error(self) -> str:
        """The last line of what went wrong."""
        return (self.folder / ERROR).read_text().strip().splitlines()[-1]


def plan(
    experiment: Experiment,
    out: Path,
    budget: float = 1.0,
    seeds: int | None = None,
    envs: Sequence[str] | None = None,
    variants: Sequence[str] | None = None,
    eval_episodes: int = 20,
    device: str = "cpu",
) -> list[Planned]:
    """Every run of an experiment, or of the part of it that is asked for.

    Seed by seed, so that an experiment that is cut short has whole comparisons.

    :param budget: fraction of the paper's steps; decay, intervals and all else stay as they are
    """
    if not 0 < budget <= 1:
        raise ValueError(f"--budget {budget}: it must be above 0 and at most 1, a fraction of the paper's steps.")
    chosen_envs = _chosen(envs, experiment.environments, f"environment of {experiment.name}")
    chosen = [v for v in experiment.variants if variants is None or v.name in variants or v.algo in variants]
    if experiment.timed and budget != 1:
        raise ValueError(f"--budget {budget}: {experiment.name} trains nothing, it is timed. Leave it out.")
    known = {word for variant in experiment.variants for word in (variant.name, variant.algo)}
    _chosen(variants, known, f"algorithm of {experiment.name}")
    runs = []
    for seed in range(experiment.seeds if seeds is None else seeds):
        for env in chosen_envs:
            for variant in chosen:
                config = _config(experiment, variant, env, seed, budget, eval_episodes, device)
                runs.append(Planned(variant.name, config, folder_of(out, env, variant.name, seed), experiment.timed))
    return runs


def _chosen(asked: Iterable[str] | None, known: Iterable[str], what: str) -> list[str]:
    known = list(known)
    for word in asked or ():
        if word not in known:
            raise ValueError(f"{word!r} is no {what}. There are: {', '.join(sorted(known))}.")
    return known if asked is None else list(asked)


def _config(
    experiment: Experiment, variant: Variant, env: str, seed: int, budget: float, eval_episodes: int, device: str
) -> Config:
    # Whole iterations of StaQ, and at least one, for all alike: curves are to be compared step by step.
    timesteps = max(INTERVAL, round(experiment.timesteps * budget / INTERVAL) * INTERVAL)
    if experiment.timed:
        timesteps = timing.STEPS * (1 + timing.SAMPLES)
    return configured(
        env,
        presets.for_environment(env, variant.algo),
        variant.algo,
        overrides=variant.hyperparameters,
        timesteps=timesteps,
        seed=seed,
        eval_every=max(timesteps // EVALUATIONS, INTERVAL),
        eval_episodes=eval_episodes,
        threads=(os.cpu_count() or 1) if experiment.timed else 1,
        device=device,
        actions=variant.actions,
    )


def folder_of(out: Path, env: str, variant: str, seed: int) -> Path:
    """DIR/ENV/VARIANT/SEED, in letters that every file system takes."""
    return out / _slug(env) / _slug(variant) / str(seed)


def _slug(text: str) -> str:
    plain = text.replace("/", "-").replace("ε_KL", "kl").replace("ε", "eps")
    return re.sub(r"[^A-Za-z0-9.=-]+", "_", plain)


def save_request(out: Path, experiment: str, request: dict[str, object]) -> None:
    """What was asked for, so that ``status`` and ``report`` need not be told again."""
    out.mkdir(parents=True, exist_ok=True)
    replace_text(out / "experiment.json", json.dumps({"experiment": experiment, **request}, indent=2) + "\n")


def load_request(out: Path) -> dict[str, object]:
    path = out / "experiment.json"
    if not path.exists():
        raise FileNotFoundError(f"{out} holds no experiment: begin one with staq experiment run NAME --out {out}")
    content: dict[str, object] = json.loads(path.read_text())
    return content
