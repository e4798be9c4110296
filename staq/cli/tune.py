"""``staq tune``: hyperparameters by Optuna, and a page of what mattered."""

from __future__ import annotations

import argparse
import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from staq import registry
from staq.cli import presets
from staq.cli.options import whole_number
from staq.registry import EVALUATIONS
from staq.search_space import SEARCH_SPACES, suggested

if TYPE_CHECKING:
    import optuna

    from staq.cli.runs import Config

FIRST_SEED = 100
"""Of the first trial, and one more for each: reported results have seeds below it."""
EVALUATIONS_PER_TRIAL, EPISODES = 10, 10
SHARE_OF_RUN = 5
"""A trial is this many times shorter than the preset's run, unless its length is given."""
STUDY, PAGE = "study.db", "README.md"
SHOWN = 10
"""Trials in the page's table."""


def add_command(commands: Any) -> None:
    """``staq tune``"""
    command = commands.add_parser(
        "tune",
        help="find good hyperparameters for an environment",
        description="Tries hyperparameters with Optuna, the preset's first, stops trials that fall behind, and writes "
        "a page of what mattered. The same command goes on where it was stopped, or adds trials.",
    )
    command.set_defaults(command=tune)
    command.add_argument("env", metavar="ENV", help="a Gymnasium environment, such as CartPole-v1, or module:Name-v0")
    command.add_argument("--trials", type=whole_number, default=20, metavar="N", help="in all (%(default)s)")
    command.add_argument(
        "--timesteps", type=whole_number, help=f"per trial; by default 1/{SHARE_OF_RUN} of the preset's"
    )
    command.add_argument("--algo", choices=registry.ours(), default="staq", help="(%(default)s)")
    command.add_argument(
        "--evaluation", choices=list(EVALUATIONS), default="lambda", help="%(default)s, by default, is the fast one"
    )
    command.add_argument("--out", type=Path, metavar="FOLDER", help="by default tuning/ENV/ALGO-EVALUATION")
    command.add_argument("--threads", type=whole_number, default=1, help="CPU threads (%(default)s)")


def tune(options: argparse.Namespace) -> None:
    try:
        import optuna
    except ImportError as error:
        raise ModuleNotFoundError("Tuning needs Optuna: pip install 'staq[tune]'") from error
    from tqdm import tqdm

    from staq.envs.make import make_env

    folder = options.out or Path("tuning") / options.env.replace("/", "-") / f"{options.algo}-{options.evaluation}"
    preset = presets.for_environment(options.env, options.algo, options.evaluation)
    timesteps = options.timesteps or preset.timesteps // SHARE_OF_RUN
    what = {"env": options.env, "algo": options.algo, "evaluation": options.evaluation, "timesteps": timesteps}
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    make_env(options.env).close()  # what cannot be made is to be known before anything is written
    study = opened(folder, what)
    print(f"{options.algo} on {options.env}, {timesteps} steps per trial → {folder}")
    left = options.trials - len(finished(study))
    with tqdm(
        total=options.trials, initial=options.trials - max(0, left), unit=" trials", desc=options.env
    ) as progress:

        def shown(study: optuna.Study, _: optuna.trial.FrozenTrial) -> None:
            if _completed(study):
                progress.set_postfix(best=f"{study.best_value:.1f}", refresh=False)
            progress.update()

        def objective(trial: optuna.Trial) -> float:
            return tried(trial, what, preset, folder, options.threads, options.line)

        if left > 0:
            study.optimize(objective, n_trials=left, callbacks=[shown])
    if not _completed(study):
        raise ValueError(
            f"None of {len(finished(study))} trials was completed: nothing is known yet. Ask for more --trials."
        )
    command = write_page(study, folder)
    print(f"Best of {len(finished(study))}: {study.best_value:.1f} (trial {study.best_trial.number})")
    print(f"Page: {folder / PAGE}\nTrain with the best settings:\n{command}")


def opened(folder: Path, what: dict[str, Any]) -> optuna.Study:
    """The study of a folder, which may have begun earlier; the preset is what it tries first."""
    import optuna

    folder.mkdir(parents=True, exist_ok=True)
    storage = f"sqlite:///{(folder / STUDY).resolve()}"
    # Other draws in every sitting, and the same where nothing was stopped.
    known = optuna.get_all_study_names(storage)
    n_before = len(optuna.load_study(study_name=known[0], storage=storage).trials) if known else 0
    study = optuna.create_study(
        study_name="staq",
        storage=storage,
        sampler=optuna.samplers.TPESampler(seed=FIRST_SEED + n_before),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=EVALUATIONS_PER_TRIAL // 4),
        direction="maximize",
        load_if_exists=True,
    )
    if not study.user_attrs:
        for name, value in what.items():
            study.set_user_attr(name, value)
        study.enqueue_trial(_of_preset(what))
    if study.user_attrs != what:
        raise ValueError(
            f"{folder} holds trials of {study.user_attrs}, not of {what}: name another --out, or ask for the same."
        )
    return study


def _of_preset(what: dict[str, Any]) -> dict[str, Any]:
    """The preset's values, where the search looks."""
    preset = presets.for_environment(what["env"], what["algo"], what["evaluation"])
    values = presets.defaults(what["algo"], what["evaluation"]) | preset.hyperparameters
    space = SEARCH_SPACES[what["evaluation"]]
    return {name: values[name] for name, its in space.items() if name in values and its.has(values[name])}


def finished(study: optuna.Study) -> list[optuna.trial.FrozenTrial]:
    """Trials that ran to their end or were pruned: those that a stop cut short are made again."""
    from optuna.trial import TrialState

    return study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED))


def _completed(study: optuna.Study) -> list[Any]:
    """Trials that ran to their end."""
    return [trial for trial in finished(study) if trial.state.name == "COMPLETE"]


def configured(trial: Any, what: dict[str, Any], preset: presets.Preset, threads: int) -> Config:
    """The run that a trial is."""
    from staq.cli import runs

    known = presets.defaults(what["algo"], what["evaluation"])
    found = {"evaluation": what["evaluation"], **suggested(trial, what["evaluation"], known, preset.n_envs)}
    return runs.configured(
        what["env"],
        preset,
        what["algo"],
        overrides=found,
        timesteps=what["timesteps"],
        seed=FIRST_SEED + trial.number,
        eval_every=max(1, what["timesteps"] // EVALUATIONS_PER_TRIAL),
        eval_episodes=EPISODES,
        threads=threads,
    )


def tried(
    trial: optuna.Trial, what: dict[str, Any], preset: presets.Preset, folder: Path, threads: int, line: str
) -> float:
    """The greedy return of a trial: the mean over its last quarter of evaluations."""
    import optuna
    import torch

    from staq.cli.rollouts import Rollouts
    from staq.cli.runs import build
    from staq.envs.make import make_envs

    class Reported(Rollouts):
        """Evaluations that Optuna hears of, and may stop a trial at."""

        stopped = False

        def record(self) -> None:
            super().record()
            # By its share of the trial, which is the same whatever the length of an iteration.
            trial.report(float(self.greedy[self.num_timesteps][0].mean()), self.num_timesteps // self.every)
            self.stopped = trial.should_prune()

        def _on_step(self) -> bool:
            return not self.stopped

    config = configured(trial, what, preset, threads)
    its_folder = folder / "trials" / str(trial.number)
    torch.set_num_threads(threads)
    env, eval_env = make_envs(config.env, config.n_envs), make_envs(config.env, 2 * EPISODES)
    try:
        model: Any = build(config, env)
        its_folder.mkdir(parents=True, exist_ok=True)
        config.save(its_folder, line)
        reported = Reported(eval_env, its_folder, config.eval_every, config.seed)
        model.learn(config.timesteps, callback=reported, log_interval=None)
    except FloatingPointError as error:
        raise optuna.TrialPruned(f"diverged: {error}") from error
    finally:
        env.close()
        eval_env.close()
    if reported.stopped:
        raise optuna.TrialPruned
    returns = [float(rewards.mean()) for rewards, _ in reported.greedy.values()]
    last = returns[-max(1, len(returns) // 4) :]
    return sum(last) / len(last)


def command_for(study: optuna.Study, folder: Path) -> str:
    """What trains with the best trial's settings, with a seed that it was not found by."""
    from staq.cli.runs import Config

    config = Config.load(folder / "trials" / str(study.best_trial.number))
    options = [(f"--{name.replace('_', '-')}", _as_toml(value)) for name, value in config.hyperparameters.items()]
    options += [("--timesteps", str(config.timesteps)), ("--preset", config.preset), ("--algo", config.algo)]
    return shlex.join(["staq", "train", config.env, *(word for pair in options for word in pair)])


def _as_toml(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def write_page(study: optuna.Study, folder: Path) -> str:
    """Writes the page of a study, and returns the command that it ends with."""
    what, best, command = study.user_attrs, study.best_trial, command_for(study, folder)
    completed = sorted(_completed(study), key=lambda trial: -trial.value)
    names = list(best.params)
    draw_history(study, folder / "history.png")
    importance = draw_importance(study, folder / "importance.png")
    rows = [[str(t.number), f"{t.value:.1f}", *(_short(t.params.get(n)) for n in names)] for t in completed[:SHOWN]]
    text = [
        f"# {what['algo']} on {what['env']}, tuned",
        f"{len(finished(study))} trials of {what['timesteps']} steps, evaluation {what['evaluation']}; "
        f"{len(completed)} ran to their end, the others were stopped early. A value is the mean greedy return over the "
        f"last quarter of a trial's evaluations, {EPISODES} episodes each, of one seed ({FIRST_SEED} + its number). "
        f"The best of many is too good to be true, so train with seeds below {FIRST_SEED} before you report it.",
        f"Trial 0 is the preset. The best is trial {best.number}, with {best.value:.1f}:",
        f"```sh\n{command}\n```",
        "## History\n\n![the value of every trial, and the best so far](history.png)",
        f"## What mattered\n\n{importance}",
        "## The best trials\n\n" + _table(["trial", "value", *names], rows),
    ]
    (folder / PAGE).write_text("\n\n".join(text) + "\n")
    return command


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["--:"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def draw_history(study: optuna.Study, out: Path) -> None:
    """The value of every trial, the best so far, and where the others were stopped."""
    completed = _completed(study)
    figure, axis = _figure()
    axis.plot([t.number for t in completed], [t.value for t in completed], "o", label="ran to its end")
    stopped = [t for t in finished(study) if t.state.name == "PRUNED" and t.intermediate_values]
    axis.plot([t.number for t in stopped], [max(t.intermediate_values.values()) for t in stopped], "x", label="stopped")
    best = [max(t.value for t in completed[: i + 1]) for i in range(len(completed))]
    axis.step([t.number for t in completed], best, where="post", label="best so far")
    axis.set(xlabel="trial", ylabel="greedy return")
    axis.locator_params(axis="x", integer=True)
    axis.legend(frameon=False)
    figure.savefig(out, dpi=110)


def draw_importance(study: optuna.Study, out: Path) -> str:
    """Draws which hyperparameters the value depended on, and returns what the page says of it."""
    import optuna

    try:
        found = optuna.importance.get_param_importances(study)
    except (RuntimeError, ValueError) as error:
        return f"Not known yet ({error}): ask for more trials."
    figure, axis = _figure()
    names = list(found)[::-1]
    axis.barh(names, [found[name] for name in names])
    axis.set(xlabel="share of what set the better trials apart (PED-ANOVA)")
    figure.savefig(out, dpi=110)
    return "![importance of every hyperparameter](importance.png)\n\nWith few trials this is a hint, not a finding."


def _figure() -> tuple[Any, Any]:
    """One panel."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    return figure, figure.subplots()
