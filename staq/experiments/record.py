"""From an experiment to its runs: which there are, where they lie, and how far each of them is."""

from __future__ import annotations

import csv
import json
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from staq.cli import presets
from staq.cli.runs import Config, configured
from staq.experiments import timing
from staq.experiments.plans import Experiment, Variant
from staq.experiments.timing import INTERVAL
from staq.storage.atomic_files import replace_text

State = Literal["planned", "begun", "finished", "failed"]
ERROR = "error.txt"
TIMING = "timing.json"
FINISHED = "finished.txt"
"""Written last, so that a run's configuration, rows and this tell all: weights need not be copied with them."""
OUTPUT = "output.txt"
"""What a worker prints, from its first moment on."""
BEGUN = (OUTPUT, "progress.csv")
"""The former stays behind where rows are copied without it."""
REQUEST = "experiment.json"


@dataclass(frozen=True)
class Planned:
    """One run of an experiment."""

    variant: str
    config: Config
    folder: Path
    timed: bool = False
    """To be timed, not trained."""

    @property
    def config_differs(self) -> bool:
        """Whether what lies in its folder was run with another configuration, such as another budget."""
        if not self.configured:
            return False
        # The same run on another machine is the same run; times say themselves what machine they are of.
        here, there = (replace(config, device="", threads=0) for config in (self.config, Config.load(self.folder)))
        return here != there

    @property
    def configured(self) -> bool:
        """Whether its folder holds its configuration, with which it can be begun."""
        return (self.folder / "config.json").exists()

    @property
    def state(self) -> State:
        """By what lies in its folder: any machine can tell, and copying folders merges results."""
        if (self.folder / (TIMING if self.timed else FINISHED)).exists():
            return "finished"
        if (self.folder / ERROR).exists():
            return "failed"
        return "begun" if any((self.folder / name).exists() for name in BEGUN) else "planned"

    @property
    def steps_done(self) -> int:
        """As of the last line of its log."""
        if self.state == "finished":
            return self.config.timesteps
        path = self.folder / "progress.csv"
        if not path.exists():
            return 0
        with path.open() as file:
            # A line may be half written.
            lines = [row for row in csv.DictReader(file) if (row.get("time/total_timesteps") or "").isdigit()]
        return int(lines[-1]["time/total_timesteps"]) if lines else 0

    @property
    def error(self) -> str:
        """The last line of what went wrong."""
        path = self.folder / ERROR  # which goes when the run is tried again
        lines = path.read_text("utf-8").strip().splitlines() if path.exists() else []
        return lines[-1] if lines else ""


def plan(
    experiment: Experiment,
    out: Path,
    budget: float = 1.0,
    seeds: int | str | Iterable[int] | None = None,
    envs: Sequence[str] | None = None,
    variants: Sequence[str] | None = None,
    eval_episodes: int = 20,
    device: str = "cpu",
    threads: int = 1,
) -> list[Planned]:
    """Every run of an experiment, or of the part of it that is asked for.

    Seed by seed, so that an experiment that is cut short has whole comparisons.

    :param budget: fraction of the experiment's steps; decay, intervals and all else stay as they are
    :param seeds: how many, or which: "5" are 0 to 4, "10-19" are those ten, and a list is itself
    """
    if not 0 < budget <= 1:
        raise ValueError(f"--budget {budget}: it must be above 0 and at most 1, a fraction of the experiment's steps.")
    chosen_envs = _chosen(envs, experiment.environments, f"environment of {experiment.name}")
    chosen = [v for v in experiment.variants if variants is None or v.name in variants or v.algo in variants]
    if experiment.timed and budget != 1:
        raise ValueError(f"--budget {budget}: {experiment.name} trains nothing, it is timed. Leave it out.")
    known = {word for variant in experiment.variants for word in (variant.name, variant.algo)}
    _chosen(variants, known, f"algorithm of {experiment.name}")
    runs = []
    if seeds is None:
        seeds = experiment.seeds
    for seed in range_of_seeds(str(seeds)) if isinstance(seeds, int | str) else seeds:
        for env in chosen_envs:
            for variant in chosen:
                if variant.environments and env not in variant.environments:
                    continue
                config = _config(experiment, variant, env, seed, budget, eval_episodes, device, threads)
                runs.append(Planned(variant.name, config, folder_of(out, env, variant.name, seed), experiment.timed))
    return runs


def _chosen(asked: Iterable[str] | None, known: Iterable[str], what: str) -> list[str]:
    known = list(known)
    for word in asked or ():
        if word not in known:
            raise ValueError(f"{word!r} is no {what}. There are: {', '.join(sorted(known))}.")
    return known if asked is None else list(dict.fromkeys(asked))


def range_of_seeds(text: str) -> range:
    """ "5" are 0 to 4, "10-19" are those ten."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)", text)
    if match is None:
        raise ValueError(f"--seeds {text}: it must be a number of seeds, such as 5, or a range of them, such as 10-19.")
    first, last = match.groups()
    found = range(int(last)) if first is None else range(int(first), int(last) + 1)
    if not found:
        raise ValueError(f"--seeds {text} are none.")
    return found


def _config(
    experiment: Experiment,
    variant: Variant,
    env: str,
    seed: int,
    budget: float,
    eval_episodes: int,
    device: str,
    threads: int,
) -> Config:
    # Whole iterations of StaQ, at least one, for all alike: curves are to be compared step by step, and end with one.
    steps = variant.timesteps.get(env, experiment.timesteps) * budget
    eval_every = max(1, round(steps / experiment.evaluations / INTERVAL)) * INTERVAL
    timesteps = max(1, round(steps / eval_every)) * eval_every
    if experiment.timed:
        timesteps, threads = timing.STEPS * (1 + timing.SAMPLES), os.cpu_count() or 1
    evaluation = variant.hyperparameters.get("evaluation", "replay")
    named = variant.presets.get(env)
    return configured(
        env,
        presets.for_environment(env, variant.algo, evaluation) if named is None else presets.load(named),
        variant.algo,
        overrides=variant.hyperparameters,
        timesteps=timesteps,
        seed=seed,
        eval_every=eval_every,
        eval_episodes=eval_episodes,
        threads=threads,
        device=device,
        actions=variant.actions,
    )


def folder_of(out: Path, env: str, variant: str, seed: int) -> Path:
    """DIR/ENV/VARIANT/SEED, in letters that every file system takes."""
    return out / _slug(env) / _slug(variant) / str(seed)


def _slug(text: str) -> str:
    plain = text.replace("/", "-").replace("ε_KL", "kl")
    for letter, name in (("ε", "eps"), ("η", "eta"), ("λ", "lambda")):
        plain = plain.replace(letter, name)
    return re.sub(r"[^A-Za-z0-9.=-]+", "_", plain)


def save_request(out: Path, experiment: str, request: dict[str, object]) -> None:
    """What was asked for, so that ``status`` and ``report`` need not be told again."""
    out.mkdir(parents=True, exist_ok=True)
    replace_text(out / REQUEST, json.dumps({"experiment": experiment, **request}, indent=2) + "\n")


def load_request(out: Path) -> dict[str, object]:
    """What was asked for when the experiment was begun; nothing, if it was begun elsewhere."""
    path = out / REQUEST
    try:
        content: dict[str, object] = json.loads(path.read_text()) if path.exists() else {}
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is damaged ({error}): copy it again, or delete it, since runs say enough.") from error
    return content


def found_runs(experiment: Experiment, out: Path, **given: Any) -> list[Planned]:
    """What was asked for, and whatever else of the experiment lies there, such as what another machine has run."""
    asked = plan(experiment, out, **given)
    seeds = {int(path.name) for path in out.glob("*/*/*") if path.name.isdigit()}
    seeds |= {run.config.seed for run in asked}
    everything = plan(experiment, out, **given | {"seeds": sorted(seeds), "envs": None, "variants": None})
    wanted = {run.folder for run in asked}
    return [run for run in everything if run.folder in wanted or run.state != "planned"]


def begun_with(experiment: Experiment, out: Path) -> dict[str, Any]:
    """What the runs that lie there were asked for with, where nobody has said; nothing, if there are none."""
    for path in sorted(out.glob("*/*/*/config.json")):
        config = Config.load(path.parent)
        whole = experiment.timed or experiment.minutes  # or of lengths of their own
        budget = None if whole else config.timesteps / experiment.timesteps
        return {"budget": budget, "eval_episodes": config.eval_episodes}
    return {}
