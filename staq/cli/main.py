"""The command line: train, eval, watch, plot, experiment, theory, info."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import shlex
import sys
import tomllib
import warnings
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from gymnasium import spaces

from staq import presets
from staq.arguments import checked_device, meanings_of_arguments, whole_number
from staq.experiments.commands import add_experiment_commands
from staq.family import FAMILY
from staq.rivals import RIVALS
from staq.runs import DEFAULT_EPISODES, Config, configured
from staq.version import __version__

DEFAULT_N_ENVS = 50
OVERRIDE = "hyperparameter "
UNSET = object()


def main(arguments: list[str] | None = None) -> int:
    """Entry point of ``staq``. Expected failures are one line on standard error and exit code 1."""
    parser = build_parser()
    words = sys.argv[1:] if arguments is None else arguments
    options, rest = parser.parse_known_args(words)
    options.line = shlex.join(["staq", *words])
    try:
        if rest:
            raise ValueError(_unrecognised(rest))
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_, **__: print(f"staq: {message}", file=sys.stderr)
            options.command(options)
    except KeyboardInterrupt:
        print("staq: stopped; what was saved is intact.", file=sys.stderr)
        return 130
    except (ValueError, TypeError, OSError, ModuleNotFoundError, FloatingPointError) as error:
        print(f"staq: {error}", file=sys.stderr)
        return 1
    return 0


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="staq", description="Exact policy mirror descent.")
    parser.add_argument("--version", action="version", version=f"staq {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    command = commands.add_parser(
        "train",
        help="train an agent, or resume a run",
        usage="staq train ENV [options], or staq train --resume RUN",
        description="Trains StaQ, a relative or a rival on ENV with the preset made for it; every hyperparameter is an "
        "option.",
        allow_abbrev=False,
    )
    command.set_defaults(command=train)
    command.add_argument("env", nargs="?", metavar="ENV", help="a Gymnasium environment, such as CartPole-v1")
    command.add_argument("--resume", type=Path, metavar="RUN", help="continue this run, exactly")
    command.add_argument("--algo", choices=presets.algorithms(), help="staq by default")
    command.add_argument("--preset", help=f"one of {', '.join(presets.names())}; by default the one made for ENV")
    command.add_argument("--policy", choices=["MlpPolicy", "CnnPolicy"], help="by default the preset's")
    command.add_argument(
        "--actions",
        choices=["factored", "boundary"],
        help="of a continuous space: choices in every dimension (default), or the bounds of one at a time",
    )
    command.add_argument("--timesteps", type=whole_number, help="environment steps in all; by default the preset's")
    command.add_argument("--seed", type=int, help="0 by default")
    command.add_argument("--n-envs", type=whole_number, help="environments in parallel; by default the preset's")
    command.add_argument("--out", type=Path, metavar="RUN", help="the run's folder; by default runs/ENV/ALGO/SEED")
    command.add_argument("--eval-every", type=whole_number, help="steps between evaluations; by default 50 in a run")
    command.add_argument("--eval-episodes", type=whole_number, help=f"per evaluation and mode ({DEFAULT_EPISODES})")
    command.add_argument("--threads", type=whole_number, help=f"CPU threads ({torch.get_num_threads()})")
    command.add_argument("--device", help="auto, cpu or cuda")
    command.add_argument("--wandb", metavar="PROJECT", help="also log to Weights & Biases")
    group = command.add_argument_group(
        "hyperparameters", "written as in TOML, none for None; in brackets the default where no preset says it"
    )
    for name, text in _hyperparameter_help().items():
        option = f"--{name.replace('_', '-')}"
        group.add_argument(option, dest=OVERRIDE + name, type=_value, metavar="VALUE", help=text, default=UNSET)

    command = commands.add_parser("eval", help="returns of a trained policy")
    command.set_defaults(command=evaluate)
    _add_policy_arguments(command)
    command.add_argument("--episodes", type=whole_number, default=20)
    command.add_argument("--seed", type=int, default=0)

    command = commands.add_parser("watch", help="a film of a trained policy")
    command.set_defaults(command=watch)
    _add_policy_arguments(command)
    command.add_argument("--out", type=Path, help="an .mp4 or .gif; by default watch.mp4 in the run")
    command.add_argument("--episodes", type=whole_number, default=1)
    command.add_argument("--stochastic", action="store_true", help="sample actions instead of taking the likeliest")
    command.add_argument("--seed", type=int, default=0)

    command = commands.add_parser("plot", help="learning curves of one or more runs")
    command.set_defaults(command=plot)
    command.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    command.add_argument("--out", type=Path, default=Path("learning_curves.png"))
    command.add_argument("--mode", choices=["greedy", "stochastic"], default="greedy")
    command.add_argument("--apart", action="store_true", help="a panel for each kind of run, not for each environment")

    add_experiment_commands(commands)

    theory = commands.add_parser("theory", help="the paper's statements, computed exactly on finite MDPs")
    parts = theory.add_subparsers(required=True, metavar="PART")
    command = parts.add_parser(
        "check",
        help="look for violations of every statement on random MDPs",
        description="Evaluates every lemma and theorem along runs on random MDPs with random errors, as stated in the "
        "paper and as repaired in docs/theory.md, and counts the trials in which one fails.",
    )
    command.set_defaults(command=theory_check)
    command.add_argument("--trials", type=whole_number, default=1000, help="random MDPs (%(default)s)")
    command.add_argument("--seed", type=int, default=0)
    command.add_argument("--only", type=int, metavar="TRIAL", help="rerun this one trial and show its findings")
    command.add_argument("--json", type=Path, metavar="FILE", help="also write the table as JSON")
    command.add_argument("--processes", type=whole_number, default=os.cpu_count() or 1, help="(%(default)s)")

    command = parts.add_parser("averaging", help="do evaluation errors average out? the paper's study on two grids")
    command.set_defaults(command=theory_averaging)
    command.add_argument("--budget", type=float, default=0.01, help="of 50 seeds × 300 iterations (%(default)s)")
    command.add_argument("--envs", nargs="+", choices=["pendulum", "mountaincar"], default=["pendulum", "mountaincar"])
    command.add_argument("--out", type=Path, default=Path("averaging"), metavar="FOLDER", help="(%(default)s)")

    command = parts.add_parser("plot", help="pictures of the bounds, the trade-off, the rate and the threshold")
    command.set_defaults(command=theory_plot)
    command.add_argument("--out", type=Path, default=Path("theory"), metavar="FOLDER", help="(%(default)s)")

    command = commands.add_parser("info", help="versions, extras and presets on this machine")
    command.set_defaults(command=info)
    return parser


def train(options: argparse.Namespace) -> None:
    from staq import runs

    config, folder = _resumed(options) if options.resume is not None else _configured(options)
    title = presets.load(config.preset).title
    print(f"{config.algo} on {config.env}, preset {config.preset} ({title}), seed {config.seed} → {folder}")
    for name, value in (presets.defaults(config.algo) | config.hyperparameters).items():
        if name != "policy_kwargs" or value:
            print(f"  {name:24} {value}{'' if name in config.hyperparameters else '   (default)'}")
    resuming = options.resume is not None
    model, finished = runs.train(config, folder, options.line, resuming, wandb_project=options.wandb)
    if not finished:
        print(f"Stopped after {model.num_timesteps} steps. Continue with: staq train --resume {folder}")
        return
    from staq.plots import learning_curves

    mean, minimum = runs.final_evaluation(model, config, episodes=20)
    print(f"Greedy return over 20 fresh episodes after {model.num_timesteps} steps: {mean:.1f} (worst {minimum:.1f})")
    print(f"Model: {folder / 'model'}")
    try:
        learning_curves([folder], folder / "learning_curve.png")
        print(f"Curve: {folder / 'learning_curve.png'}")
    except ValueError as error:  # too short a run for an evaluation
        print(error)


def evaluate(options: argparse.Namespace) -> None:
    from staq import runs
    from staq.evaluation import play

    policy, env_id, actions = _policy_and_environment(options)
    env = runs.make_envs(env_id, min(options.episodes, DEFAULT_N_ENVS), actions)
    for mode in ("greedy", "stochastic"):
        rewards, lengths, _ = play(policy, env, options.episodes, mode == "greedy", options.seed)
        print(
            f"{env_id}  {mode:10}  return {rewards.mean():.2f} ± {rewards.std():.2f} (min {rewards.min():.2f}, "
            f"max {rewards.max():.2f}), length {lengths.mean():.0f}, {len(rewards)} episodes"
        )


def watch(options: argparse.Namespace) -> None:
    from staq.watch import film

    policy, env_id, actions = _policy_and_environment(options)
    default = options.run / "watch.mp4" if options.run.is_dir() else Path("watch.mp4")
    out = options.out or default
    scores = film(policy, env_id, actions, out, options.episodes, not options.stochastic, options.seed)
    print(f"{out}: {len(scores)} episode(s), return {', '.join(f'{score:g}' for score in scores)}")


def plot(options: argparse.Namespace) -> None:
    from staq.plots import learning_curves

    for line in learning_curves(options.runs, options.out, options.mode, options.apart):
        print(line)
    print(options.out)


def theory_check(options: argparse.Namespace) -> None:
    from tqdm import tqdm

    from staq.tabular.audit import as_json, audit, trial

    if options.only is not None:
        _, label, findings = trial(options.seed, options.only)
        print(label)
        for finding in findings:
            repaired = {None: "", False: ", holds as repaired", True: ", VIOLATED as repaired"}[
                finding.violated_repaired
            ]
            verdict = "violated" if finding.violated else "holds"
            print(f"  {finding.statement:42} {verdict} as stated (left/right up to {finding.ratio:.4g}){repaired}")
        return
    with tqdm(total=options.trials, unit=" trials", desc="audit") as bar:
        rows = audit(options.trials, options.seed, options.processes, bar.update)
    print(f"{'statement':42}{'trials':>8}{'as stated':>11}{'repaired':>10}{'worst':>9}   smallest counterexample")
    for row in rows:
        repaired = "" if row.violations_as_repaired is None else str(row.violations_as_repaired)
        counts = f"{row.trials:8d}{row.violations_as_stated:11d}{repaired:>10}{row.worst_ratio:9.3f}"
        print(f"{row.statement:42}{counts}   {row.smallest_counterexample or ''}")
    if options.json is not None:
        options.json.write_text(json.dumps(as_json(rows, options.trials, options.seed), indent=2) + "\n")


def theory_averaging(options: argparse.Namespace) -> None:
    from tqdm import tqdm

    from staq.tabular import averaging

    n_seeds, iterations = averaging.scaled_to(options.budget)
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.envs:
        study, unfinished = (
            averaging.Study(averaging.ENVIRONMENTS[name](), n_seeds),
            options.out / f"{name}.unfinished.pt",
        )
        if unfinished.exists():
            study.restore(unfinished)
        with tqdm(
            total=iterations, initial=study.iteration, unit=" iterations", desc=f"{name}, {n_seeds} seeds"
        ) as bar:
            while study.iteration < iterations:
                study.iterate()
                study.save(unfinished)
                bar.update()
        averaging.write(study.rows, options.out / f"{name}.csv")
        unfinished.unlink(missing_ok=True)
        print(name, *averaging.verdict(study.rows), sep="\n  ")
    finished = {name: options.out / f"{name}.csv" for name in averaging.ENVIRONMENTS}
    studies = {name: averaging.read(path) for name, path in finished.items() if path.exists()}
    averaging.draw(studies, options.out / "averaging.png")
    print(options.out / "averaging.png")


def theory_plot(options: argparse.Namespace) -> None:
    from staq.tabular.figures import draw_all

    for path in draw_all(options.out):
        print(path)


def info(options: argparse.Namespace) -> None:
    from staq import kernels
    from staq.runs import provenance

    for name, value in provenance().items():
        print(f"{name:20} {value}")
    print(f"{'cuda':20} {torch.cuda.is_available()}")
    print(f"{'compiled kernels':20} {'yes' if kernels.available() else 'none, for want of a C compiler: slower'}")
    for extra, module in {
        "minatar": "minatar",
        "box2d": "Box2D",
        "rivals": "sb3_contrib",
        "mujoco": "mujoco",
        "experiments": "rliable",
        "distributed": "ray",
        "wandb": "wandb",
    }.items():
        found = _has(module)
        print(f"{'extra ' + extra:20} {'installed' if found else f'pip install staq[{extra}]'}")
    for name in presets.names():
        print(f"{'preset ' + name:20} {presets.load(name).title}")


def _value(text: str) -> Any:
    if text.lower() == "none":
        return None
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    # 1e6 is a float in TOML, but who writes it means a million steps.
    return int(value) if isinstance(value, float) and value.is_integer() and re.fullmatch(r"\d+e\d+", text) else value


def _configured(options: argparse.Namespace) -> tuple[Config, Path]:
    """A new run."""
    if options.env is None:
        raise ValueError("Name an environment, as in: staq train CartPole-v1 (or --resume RUN).")
    algo = options.algo or "staq"
    config = configured(
        options.env,
        presets.load(options.preset) if options.preset else presets.for_environment(options.env, algo),
        algo,
        overrides=_overrides(options),
        policy=options.policy,
        timesteps=options.timesteps,
        seed=options.seed or 0,
        n_envs=options.n_envs,
        eval_every=options.eval_every,
        eval_episodes=options.eval_episodes or DEFAULT_EPISODES,
        threads=options.threads,
        device=checked_device(options.device or "auto"),
        actions=options.actions,
    )
    folder = options.out or _free_folder(config)
    if folder.exists():
        raise FileExistsError(
            f"{folder} exists, and no run is ever overwritten: name another --out, or continue it with "
            f"staq train --resume {folder}"
        )
    return config, folder


def _resumed(options: argparse.Namespace) -> tuple[Config, Path]:
    """A run as it was configured; only its end may be moved."""
    names = ("env", "algo", "actions", "preset", "policy", "seed", "n_envs", "out", "eval_every", "eval_episodes")
    given = [name for name in (*names, "threads", "device") if getattr(options, name) is not None]
    given += list(_overrides(options))
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


def _overrides(options: argparse.Namespace) -> dict[str, Any]:
    prefixed = {name: value for name, value in vars(options).items() if name.startswith(OVERRIDE)}
    return {name.removeprefix(OVERRIDE): value for name, value in prefixed.items() if value is not UNSET}


def _has(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def _hyperparameter_help() -> dict[str, str]:
    """What every hyperparameter is, its default, and whose that is where not all algorithms have the same."""
    owners: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    meanings: dict[str, str] = {}
    every = [algo for algo in presets.algorithms() if algo != "trpo" or _has("sb3_contrib")]
    for algo in every:
        for name, default in presets.defaults(algo).items():
            owners[name][str(default)].append(algo)
        if algo in FAMILY:
            meanings |= meanings_of_arguments(FAMILY[algo])
    return {name: f"{meanings.get(name, '')} [{_defaults(its, every)}]".strip() for name, its in owners.items()}


def _defaults(owners: dict[str, list[str]], every: list[str]) -> str:
    """Of one hyperparameter, given the algorithms that have each."""
    words = []
    for default, algos in owners.items():
        family = ["staq and relatives"] if set(FAMILY) <= set(algos) else [algo for algo in algos if algo in FAMILY]
        of = [*family, *(algo for algo in algos if algo not in FAMILY)]
        words.append(default if algos == every else f"{default}: {', '.join(of)}")
    return "; ".join(words)


def _unrecognised(words: list[str]) -> str:
    name = words[0].split("=")[0].removeprefix("--").replace("-", "_")
    if not words[0].startswith("--"):
        return f"{words[0]!r} is neither an option nor the value of one."
    try:
        presets.check_hyperparameters({name: None})
    except ValueError as error:
        return str(error)
    return f"unrecognised option {words[0]!r} for this command."


def _free_folder(config: Config) -> Path:
    base, seed = Path("runs") / config.env.replace("/", "-") / config.algo, config.seed
    folder, n = base / str(seed), 1
    while folder.exists():
        n += 1
        folder = base / f"{seed}-{n}"
    return folder


def _add_policy_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("run", type=Path, metavar="RUN", help="a run, an exported policy, or an SB3 zip (--trust)")
    command.add_argument("--best", action="store_true", help="the best policy of the run's evaluations")
    command.add_argument("--env", help="the environment, where the file does not say")
    command.add_argument(
        "--trust", action="store_true", help="load what can run any code: a zip, a module's environment"
    )


def _policy_and_environment(options: argparse.Namespace) -> tuple[Any, str, str | None]:
    """The policy of a run, an export or (trusted) a zip of ``model.save``; its environment, and actions there."""
    from staq.export import DESCRIPTION, load_policy
    from staq.runs import trained_player

    path: Path = options.run
    policy: Any
    environment: str | None = None
    actions: str | None = None
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist.")
    if path.is_file():
        policy = _unpickled(path, options.trust)
    else:
        run, inner = path, path / ("best_model" if options.best else "model")
        if path.name in ("model", "best_model") or (path / DESCRIPTION).exists():
            run, inner = path.parent, path
        if not inner.exists():
            raise FileNotFoundError(
                f"{path} holds no {inner.name}: is the run finished? (--best takes the best so far)"
            )
        config = Config.load(run) if (run / "config.json").exists() else None
        if config is not None and config.algo in RIVALS:
            _check_that_nothing_is_imported(config.env, options)
            policy, environment, actions = trained_player(config, inner), config.env, config.actions
        else:
            policy, description = load_policy(inner)
            environment = description["environment"]
            _check_that_nothing_is_imported(environment, options)
            actions = "boundary" if description.get("boundary_actions") else None
    env_id = options.env or environment
    if env_id is None:
        raise ValueError(f"{path} does not say which environment it is for: name it with --env.")
    return policy, env_id, actions or _boundary_if_needed(policy, path, env_id)


def _check_that_nothing_is_imported(environment: str | None, options: argparse.Namespace) -> None:
    """Gymnasium imports the module of "module:Name-v0", which whoever made the file has named."""
    if environment and ":" in environment and not (options.env or options.trust):
        raise ValueError(
            f"{options.run} is for {environment}, and making that environment runs the code of a module. If you trust "
            f"it, add --trust, or --env {environment}."
        )


def _unpickled(path: Path, trusted: bool) -> Any:
    """The policy of a model's zip, which does not say whose it is: of the first algorithm that can read it."""
    from staq.evaluation import player_of
    from staq.rivals import class_of

    if not trusted:
        raise ValueError(
            f"{path} is a pickled model, and loading it can run any code that its maker put in. If you trust its "
            "source, add --trust; or ask for an export (model.export), which is data only."
        )
    problems = []
    for algo in presets.algorithms():
        try:
            return player_of((FAMILY.get(algo) or class_of(algo)).load(path, device="cpu"))
        except Exception as error:  # unpickling a foreign file can fail in any way
            problems.append(f"{type(error).__name__}: {error}".splitlines()[0])
    raise ValueError(f"{path} is not a model saved by StaQ, its relatives or rivals ({problems[0]}).")


def _boundary_if_needed(policy: Any, path: Path, env_id: str) -> str | None:
    """For what does not say how its actions were made: those of the environment, or its boundary actions."""
    from staq.actions import BoundaryActions
    from staq.runs import make_env

    env = make_env(env_id)
    wanted, offered = policy.action_space, env.action_space
    if wanted == offered:
        return None
    if isinstance(offered, spaces.Box) and BoundaryActions(env).action_space == wanted:
        return "boundary"
    raise ValueError(f"{path} acts in {wanted}, and {env_id} takes {offered}: name its own environment with --env.")


if __name__ == "__main__":
    sys.exit(main())
