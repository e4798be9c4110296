"""``staq train``: a new run, or one that goes on."""

from __future__ import annotations

import argparse
import importlib.util
from collections import defaultdict
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from stable_baselines3.common.base_class import BaseAlgorithm

from staq import registry
from staq.cli import presets
from staq.cli.options import checked_device, toml_value, whole_number
from staq.cli.runs import DEFAULT_EPISODES, Config, configured, taken
from staq.hyperparameters import Shared, settings_of
from staq.registry import ALGORITHMS, EVALUATIONS

OVERRIDE = "hyperparameter "
UNSET = object()
COMMON = ("evaluation", "memory_size", "learning_rate")
"""Hyperparameters that ``--help`` shows."""


def add_command(commands: Any) -> None:
    """``staq train``"""
    command = commands.add_parser(
        "train",
        help="train an agent, or resume a run",
        usage="staq train ENV [options], or staq train --resume RUN",
        description="Trains StaQ, a variant or a baseline on ENV with its preset. Every hyperparameter is an option, "
        "such as --learning-rate 1e-3: --help-all lists them.",
        allow_abbrev=False,
    )
    command.set_defaults(command=train)
    command.add_argument(
        "env", nargs="?", metavar="ENV", help="a Gymnasium environment, such as CartPole-v1, or module:Name-v0"
    )
    command.add_argument(
        "--timesteps", type=whole_number, metavar="N", help="environment steps; by default the preset's"
    )
    command.add_argument("--seed", type=int, metavar="N", help="0 by default")
    command.add_argument("--n-envs", type=whole_number, metavar="N", help="environments in parallel")
    command.add_argument("--out", type=Path, metavar="RUN", help="the run's folder; by default runs/ENV/ALGO/SEED")
    command.add_argument("--resume", type=Path, metavar="RUN", help="continue this run, exactly")
    command.add_argument("--algo", choices=list(ALGORITHMS), metavar="ALGO", help=f"one of {', '.join(ALGORITHMS)}")
    command.add_argument("--preset", help="by default the one made for ENV; staq info lists them")
    more = command.add_argument_group("less often")
    more.add_argument(
        "--policy", choices=["MlpPolicy", "CnnPolicy", "MultiInputPolicy"], help="by default the preset's"
    )
    more.add_argument(
        "--actions",
        choices=["factored", "boundary"],
        help="of a continuous space: choices in every dimension (default), or the bounds of one at a time",
    )
    more.add_argument(
        "--eval-every",
        type=whole_number,
        metavar="N",
        help="steps between evaluations; by default 50 in a run, at most one per iteration",
    )
    more.add_argument(
        "--eval-episodes", type=whole_number, metavar="N", help=f"per evaluation and mode ({DEFAULT_EPISODES})"
    )
    more.add_argument("--threads", type=whole_number, metavar="N", help=f"CPU threads ({torch.get_num_threads()})")
    more.add_argument("--device", help="auto, cpu or cuda")
    more.add_argument(
        "--keep-snapshots", action="store_true", default=None, help="keep every frozen network on disk, for staq audit"
    )
    more.add_argument("--wandb", metavar="PROJECT", help="also log to Weights & Biases")
    more.add_argument("--help-all", action=_HelpAll, nargs=0, help="show every hyperparameter too")
    groups: dict[str, Any] = {}
    for name, text in _hyperparameter_help().items():
        title = _group_of(name)
        groups[title] = groups.get(title) or command.add_argument_group(title)
        option, shown = f"--{name.replace('_', '-')}", text if name in COMMON else argparse.SUPPRESS
        action = groups[title].add_argument(
            option, dest=OVERRIDE + name, type=toml_value, metavar="VALUE", help=shown, default=UNSET
        )
        action.whole_help = text


class _HelpAll(argparse.Action):
    """Shows the hyperparameters too, which are too many to be read by who looks for a common option."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any, **__: Any) -> None:
        for action in parser._actions:
            action.help = getattr(action, "whole_help", action.help)
        parser.epilog = (
            "Hyperparameters are written as in TOML, none for None. In brackets is the default where no preset says it."
        )
        parser.print_help()
        parser.exit()


def _group_of(name: str) -> str:
    """Whose hyperparameter it is, as a title."""
    if name in COMMON:
        return "hyperparameters, the first to know"
    if name in (*settings_of([Shared]), "policy_kwargs"):
        return "hyperparameters of every algorithm"
    for evaluation in EVALUATIONS:
        if name in settings_of([registry.load_evaluation(evaluation).Settings]):
            return f"hyperparameters of --evaluation {evaluation}"
    return f"hyperparameters of {', '.join(registry.algorithms_with(name)) or 'baselines'}"


def train(options: argparse.Namespace) -> int:
    from staq.cli import runs

    config, folder = _resumed(options) if options.resume is not None else _configured(options)
    announce = partial(_announce, config, folder)
    resuming = options.resume is not None
    model, stopped = runs.train(config, folder, options.line, resuming, options.wandb, announce)
    if stopped:
        print(f"Stopped after {model.num_timesteps} steps. Continue with: staq train --resume {folder}")
        return 128 + stopped
    from staq.cli.plot import learning_curves

    mean, minimum = runs.final_evaluation(model, config, episodes=20)
    print(f"Greedy return over 20 fresh episodes after {model.num_timesteps} steps: {mean:.1f} (worst {minimum:.1f})")
    print(f"Model: {folder / 'model'}")
    try:
        learning_curves([folder], folder / "learning_curve.png")
        print(f"Curve: {folder / 'learning_curve.png'}")
    except ValueError as error:  # too short a run for an evaluation
        print(error)
    return 0


def _announce(config: Config, folder: Path, model: BaseAlgorithm) -> None:
    """What is about to be run, once it is known that it can be."""
    title = presets.load(config.preset).title
    print(f"{config.algo} on {config.env}, preset {config.preset} ({title}), seed {config.seed} → {folder}")
    if model.num_timesteps >= config.timesteps:
        print(f"It has had its {config.timesteps} steps: a larger --timesteps extends it.")
    evaluation = config.hyperparameters.get("evaluation", "replay")
    for name, value in (presets.defaults(config.algo, evaluation) | config.hyperparameters).items():
        if name in config.hyperparameters:
            print(f"  {name:24} {value}")
        elif name != "policy_kwargs" or value:
            # Some depend on the number of environments, or on what is given.
            fits = ALGORITHMS[config.algo].ours and name != "policy_kwargs"
            print(f"  {name:24} {getattr(model, name) if fits else value}   (default)")


def _configured(options: argparse.Namespace) -> tuple[Config, Path]:
    """A new run."""
    if options.env is None:
        raise ValueError("Name an environment, as in: staq train CartPole-v1 (or --resume RUN).")
    algo, given = options.algo or "staq", overrides(options)
    config = configured(
        options.env,
        presets.load(options.preset)
        if options.preset
        else presets.for_environment(options.env, algo, given.get("evaluation", "replay")),
        algo,
        overrides=given,
        policy=options.policy,
        timesteps=options.timesteps,
        seed=options.seed or 0,
        n_envs=options.n_envs,
        eval_every=options.eval_every,
        eval_episodes=options.eval_episodes or DEFAULT_EPISODES,
        threads=options.threads,
        device=checked_device(options.device or "auto"),
        actions=options.actions,
        keep_snapshots=bool(options.keep_snapshots),
    )
    folder = options.out or _free_folder(config)
    if folder.exists():
        raise taken(folder)
    return config, folder


def _resumed(options: argparse.Namespace) -> tuple[Config, Path]:
    """A run as it was configured; only its end may be moved."""
    names = ("env", "algo", "actions", "preset", "policy", "seed", "n_envs", "out", "eval_every", "eval_episodes")
    given = [name for name in (*names, "threads", "device", "keep_snapshots") if getattr(options, name) is not None]
    given += list(overrides(options))
    if given:
        raise ValueError(
            f"--resume continues a run as it was configured: leave out {', '.join(given)}. Only --timesteps may be "
            "given, to extend it."
        )
    config = Config.load(options.resume)
    if options.timesteps is not None and options.timesteps < config.timesteps:
        raise ValueError(
            f"--timesteps {options.timesteps} would shorten {options.resume}, which was to have {config.timesteps}: "
            "a run can only be extended."
        )
    return replace(config, timesteps=options.timesteps or config.timesteps), options.resume


def overrides(options: argparse.Namespace) -> dict[str, Any]:
    prefixed = {name: value for name, value in vars(options).items() if name.startswith(OVERRIDE)}
    return {name.removeprefix(OVERRIDE): value for name, value in prefixed.items() if value is not UNSET}


def _free_folder(config: Config) -> Path:
    base, seed = Path("runs") / config.env.replace("/", "-") / config.algo, config.seed
    folder, n = base / str(seed), 1
    while folder.exists():
        n += 1
        folder = base / f"{seed}-{n}"
    return folder


def _has(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def _hyperparameter_help() -> dict[str, str]:
    """What every hyperparameter is, its default, and whose that is where not all algorithms have the same."""
    owners: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    meanings = {"evaluation": f"how q is learned: {', '.join(EVALUATIONS)}"}
    every = [name for name, record in ALGORITHMS.items() if not record.extra or _has(record.home.split(":")[0])]
    for algo in every:
        for name, default in presets.defaults(algo).items():
            owners[name][str(default)].append(algo)
        if ALGORITHMS[algo].ours:
            for evaluation in EVALUATIONS:
                described = settings_of(ALGORITHMS[algo].load().groups(evaluation))
                meanings = {name: each.metadata["help"] for name, each in described.items()} | meanings
    words = {name: _defaults(its, every) for name, its in owners.items()}
    for evaluation in list(EVALUATIONS)[1:]:
        for name, default in _other_defaults(evaluation).items():
            words[name] = "; ".join([*([words[name]] if name in words else []), f"{evaluation}: {default}"])
    return {name: f"{meanings.get(name, '')} [{default}]".strip() for name, default in words.items()}


def _other_defaults(evaluation: str) -> dict[str, Any]:
    """Of a policy evaluation, where they are not the paper's."""
    found = {}
    for algo in registry.ours():
        papers = presets.defaults(algo)
        for name, default in presets.defaults(algo, evaluation).items():
            if name != "evaluation" and (name not in papers or papers[name] != default):
                found[name] = default
    return found


def _defaults(owners: dict[str, list[str]], every: list[str]) -> str:
    """Of one hyperparameter, given the algorithms that have each."""
    words = []
    for default, algos in owners.items():
        ours = [algo for algo in algos if ALGORITHMS[algo].ours]
        shared = ["staq and variants"] if ours == registry.ours() else ours
        of = [*shared, *(algo for algo in algos if not ALGORITHMS[algo].ours)]
        words.append(default if algos == every else f"{default}: {', '.join(of)}")
    return "; ".join(words)


def unrecognised(words: list[str]) -> str:
    name = words[0].split("=")[0].removeprefix("--").replace("-", "_")
    if not words[0].startswith("--"):
        return f"{words[0]!r} is neither an option nor the value of one."
    try:
        presets.check_hyperparameters({name: None})
    except ValueError as error:
        return str(error)
    return f"unrecognised option {words[0]!r} for this command."
