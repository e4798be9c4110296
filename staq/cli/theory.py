"""``staq theory``: the paper's statements, computed exactly on finite MDPs."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

from staq.cli.options import whole_number


def add_command(commands: Any) -> None:
    """``staq theory check | averaging | plot``"""
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
    command.add_argument("--masks", action="store_true", help="forbid some actions in every state")
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


def theory_check(options: argparse.Namespace) -> None:
    from tqdm import tqdm

    from staq.tabular.audit import as_json, audit, trial

    if options.only is not None:
        _, label, findings = trial(options.seed, options.only, options.masks)
        print(label)
        for finding in findings:
            repaired = {None: "", False: ", holds as repaired", True: ", VIOLATED as repaired"}[
                finding.violated_repaired
            ]
            verdict = "violated" if finding.violated else "holds"
            print(f"  {finding.statement:42} {verdict} as stated (left/right up to {finding.ratio:.4g}){repaired}")
        return
    with tqdm(total=options.trials, unit=" trials", desc="audit") as bar:
        rows = audit(options.trials, options.seed, options.processes, bar.update, options.masks)
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
            options.out / f"{name}.unfinished.safetensors",
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
