"""``staq experiment``: what there is, running it, how far it is, and what it found."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

from tqdm import tqdm

from staq.cli.options import checked_device, positive, whole_number
from staq.experiments import backends, plans, random_policy, status
from staq.experiments.plans import Experiment
from staq.experiments.record import Planned, begun_with, found_runs, load_request, plan, save_request


def add_command(commands: Any) -> None:
    """``staq experiment list | show | run | status | report``"""
    experiment = commands.add_parser("experiment", help="every figure and table of the paper, at any scale")
    parts = experiment.add_subparsers(required=True, metavar="PART")
    parts.add_parser("list", help="the experiments").set_defaults(command=experiment_list)
    command = parts.add_parser("show", help="what an experiment consists of")
    command.set_defaults(command=experiment_show)
    command.add_argument("name", metavar="NAME")
    command = parts.add_parser(
        "run",
        help="run an experiment, or what is left of it",
        description="Runs an experiment. Finished runs are skipped, interrupted ones resumed, failed ones tried again. "
        "What is not said is as it was when the experiment was begun in its folder.",
    )
    command.set_defaults(command=experiment_run)
    command.add_argument("name", metavar="NAME")
    command.add_argument(
        "--budget", type=float, help="fraction of the experiment's steps (1); decay and intervals stay"
    )
    command.add_argument("--seeds", help="how many (5) or which (10-19); by default as many as the paper's")
    command.add_argument("--envs", nargs="+", metavar="ENV", help="only these environments, or all")
    command.add_argument("--algos", nargs="+", metavar="ALGO", help="only these variants or algorithms, or all")
    command.add_argument("--eval-episodes", type=whole_number, help="per evaluation and mode (20)")
    command.add_argument("--out", type=Path, metavar="DIR", help="by default experiments/NAME")
    command.add_argument("--backend", choices=["local", "ray", "slurm"], default="local", help="(%(default)s)")
    command.add_argument("--processes", type=whole_number, default=os.cpu_count() or 1, help="local: (%(default)s)")
    command.add_argument("--address", help="ray: of a cluster; by default one is started on this machine")
    command.add_argument("--cpus", type=whole_number, default=1, help="ray, slurm: threads per run (%(default)s)")
    command.add_argument("--gpus", type=positive, default=0, help="ray, slurm: per run, ray takes fractions (none)")
    command.add_argument("--partition", help="slurm: partition")
    command.add_argument("--hours", type=positive, default=20, help="slurm: time limit of a run (%(default)s)")
    command.add_argument("--device", help="auto, cpu (default) or cuda")
    command.add_argument("--dry-run", action="store_true", help="say what would be run, and for how long")
    for name, function, text in (
        ("status", experiment_status, "how far an experiment is"),
        ("report", experiment_report, "figures, tables and a page of what there is so far"),
    ):
        command = parts.add_parser(name, help=text)
        command.set_defaults(command=function)
        command.add_argument("name", metavar="NAME")
        command.add_argument("--out", type=Path, metavar="DIR", help="where it was run; by default experiments/NAME")
        if name == "status":
            command.add_argument(
                "--watch", type=positive, metavar="SECONDS", help="show it again and again, until the end"
            )


def experiment_list(options: argparse.Namespace) -> None:
    for experiment in map(plans.load, plans.names()):
        print(f"{experiment.name:14} {experiment.paper:36} {experiment.title}")


def experiment_show(options: argparse.Namespace) -> None:
    experiment = plans.load(options.name)
    print(f"{experiment.title} ({experiment.paper})")
    runs = "rounds, timed" if experiment.timed else f"seeds of {experiment.timesteps:,} steps"
    print(f"{experiment.seeds} {runs}, on {', '.join(experiment.environments)}")
    for variant in experiment.variants:
        settings = ", ".join(f"{name}={value}" for name, value in variant.hyperparameters.items())
        print(f"  {variant.name:24} {variant.algo:14} {settings}{variant.actions or ''}")


def experiment_run(options: argparse.Namespace) -> None:
    runs, out, request = _planned(options, whole=False)
    experiment = plans.load(options.name)
    if experiment.timed and options.backend != "local":
        raise ValueError(
            f"{options.name} is timed, with this machine to itself: leave out --backend {options.backend}."
        )
    if options.backend == "local":
        checked_device(runs[0].config.device)
    elif options.gpus and runs[0].config.device == "cpu":
        raise ValueError(f"--gpus {options.gpus:g} would lie idle: add --device cuda.")
    if experiment.timed:
        options.processes = 1
    backends.check(runs)
    print(_estimate(options, experiment, runs, out))
    asked = {name: value for name, value in request.items() if value is not None}
    print("  " + (", ".join(f"{name} {value}" for name, value in asked.items()) or "all of it"))
    if options.dry_run:
        for run in runs:
            print(f"  {run.state:9} {run.config.env:28} {run.variant:24} seed {run.config.seed:<4} {run.folder}")
        return
    left = backends.prepare(runs, options.line)
    save_request(out, options.name, request)
    if not left and not random_policy.seconds_left(experiment.sticky_rates, _longest(runs), out):
        return
    try:
        ended = _carry_out(options, experiment, runs, left, out)
    except KeyboardInterrupt:
        print(f"To go on: staq experiment run {options.name} --out {out}")
        raise
    if ended:
        print("\n".join([*status.table(runs), *status.failures(runs), *status.stopped(runs, out)]))
    print(f"staq experiment {'report' if ended else 'status'} {options.name} --out {out}")
    failed = sum(run.state == "failed" for run in runs)
    if ended and failed:
        raise ChildProcessError(f"{failed} runs failed, as listed above. Run the same command again to try them again.")


def _estimate(options: argparse.Namespace, experiment: Experiment, runs: list[Planned], out: Path) -> str:
    """How much there is to do, and about how long that takes."""
    left = [run for run in runs if run.state != "finished"]
    steps = sum(run.config.timesteps - run.steps_done for run in left)
    processes = options.processes if options.backend == "local" else 1
    seconds = status.seconds_left(runs, processes)
    seconds += random_policy.seconds_left(experiment.sticky_rates, _longest(runs), out)
    by = "one process" if processes == 1 else f"{processes} processes at once"
    return (
        f"{options.name}: {len(left)} of {len(runs)} runs to go, {steps:,} environment steps, about "
        f"{status.in_words(seconds)} with {by} → {out}"
    )


def _longest(runs: list[Planned]) -> int:
    return max(run.config.timesteps for run in runs)


def _carry_out(
    options: argparse.Namespace, experiment: Experiment, runs: list[Planned], left: list[Planned], out: Path
) -> bool:
    """Runs what is left, under a bar over all runs. → whether it has ended, rather than been handed to a queue"""
    total = sum(run.config.timesteps for run in runs)

    def done() -> int:
        return sum(run.steps_done for run in runs)

    shown = {"unit": " steps", "unit_scale": True, "desc": options.name, "dynamic_ncols": True}
    with tqdm(total=total, initial=done(), **shown) as bar:

        def report() -> None:
            bar.set_postfix(finished=f"{sum(run.state == 'finished' for run in runs)}/{len(runs)}", refresh=False)
            new = done() - bar.n
            if new:  # or tqdm would forget the time since the last news, and show far too many steps per second
                bar.update(new)

        if options.backend == "slurm":
            jobs = backends.slurm(left, out, options.partition, options.hours, options.cpus, options.gpus)
            if len(jobs) < len(left):
                tqdm.write(f"{len(left) - len(jobs)} runs wait in SLURM's queue already.")
            if jobs:
                tqdm.write(f"{len(jobs)} runs submitted as job {jobs[0].job_id.split('_')[0]}.")
        elif left:
            if options.backend == "ray":
                problems = backends.ray(left, options.address, options.cpus, options.gpus, report)
            else:
                problems = backends.local(left, options.processes, report)
            for problem in problems:
                tqdm.write(problem)
        random_policy.count(
            experiment.environments[0], experiment.sticky_rates, _longest(runs), out, bar.set_description
        )
        report()
    return options.backend != "slurm"


def experiment_status(options: argparse.Namespace) -> None:
    runs, _, _ = _planned(options, whole=True)
    while True:
        lines = [*status.table(runs), *status.failures(runs)]
        lines.append(f"about {status.in_words(status.seconds_left(runs, 1))} of one process left")
        print("\n".join(lines), flush=True)
        if not options.watch or all(run.state in ("finished", "failed") for run in runs):
            return
        time.sleep(options.watch)
        print(f"\033[{sum(line.count(chr(10)) + 1 for line in lines)}A\033[J", end="")  # back up, and clear


def experiment_report(options: argparse.Namespace) -> None:
    from staq.experiments.reports import write

    runs, out, _ = _planned(options, whole=True)
    with tqdm(desc="report", unit=" parts") as bar:
        page = write(plans.load(options.name), runs, out, bar.update)
    print(page)


_REQUEST = ("budget", "seeds", "envs", "algos", "eval_episodes", "device")


def _planned(options: argparse.Namespace, whole: bool) -> tuple[list[Planned], Path, dict[str, Any]]:
    """The runs of an experiment, where they are, and what was asked for.

    What is not said now is as it was when the experiment was begun.

    :param whole: everything that was ever asked for or lies there, rather than what is asked for now
    """
    experiment = plans.load(options.name)
    out = options.out or Path("experiments") / options.name
    earlier = load_request(out)
    if earlier and earlier["experiment"] != options.name:
        raise ValueError(f"{out} holds the experiment {earlier['experiment']}, not {options.name}: name another --out.")
    request = {name: getattr(options, name, None) for name in _REQUEST}
    request = {name: earlier.get(name) if value is None else value for name, value in request.items()}
    begun = begun_with(experiment, out)
    request = {name: begun.get(name) if value is None else value for name, value in request.items()}
    if whole and not earlier and not begun:
        raise FileNotFoundError(f"{out} holds no experiment: begin one with staq experiment run NAME --out {out}")
    said = {name: value for name, value in request.items() if value not in (None, ["all"])}
    given = {"variants" if name == "algos" else name: value for name, value in said.items()}
    if getattr(options, "backend", "local") != "local":
        given["threads"] = options.cpus
    return (found_runs if whole else plan)(experiment, out, **given), out, request
