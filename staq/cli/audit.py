"""``staq audit``: how far policies are from exact mirror descent."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from staq.cli.options import whole_number

if TYPE_CHECKING:
    from staq.policy_improvement.audit import Distance

AUDIT = "audit.json"


def add_command(commands: Any) -> None:
    """``staq audit``"""
    command = commands.add_parser(
        "audit",
        help="how far a run's policy is from exact mirror descent",
        description="Recomputes exact mirror descent from every network that a run with --keep-snapshots has pushed, "
        f"and compares its policies along the run. Writes {AUDIT} and audit.png into the run. Of several runs it draws "
        "one figure; those whose snapshots are gone are as they were audited before.",
    )
    command.set_defaults(command=audit)
    command.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    command.add_argument("--points", type=whole_number, default=20, help="policies along a run (%(default)s)")
    command.add_argument(
        "--out", type=Path, default=Path("audit.png"), metavar="FILE", help="figure of several runs (%(default)s)"
    )


def audit(options: argparse.Namespace) -> None:
    from staq.cli import presets
    from staq.cli.runs import Config

    audited: dict[str, Sequence[Distance]] = {}
    tolerances: dict[str, float] = {}
    for run in options.runs:
        config = Config.load(run)
        defaults = presets.defaults(config.algo, config.hyperparameters.get("evaluation", "replay"))
        settings = defaults | config.hyperparameters
        name = f"{config.env}, {_words(settings)}, seed {config.seed}"
        audited[name] = rows = rows_of(run, options.points)
        tolerances[name] = settings["merge_tolerance"]
        print(name)
        _print(rows)
    if len(options.runs) > 1:
        draw_together(audited, tolerances, options.out)
        print(options.out)


def rows_of(run: Path, points: int) -> list[Distance]:
    """Recomputed from a run's snapshots and written into it, or as they were written before."""
    from tqdm import tqdm

    from staq.cli.runs import Config, build
    from staq.envs.make import make_envs
    from staq.policy_improvement import audit as audits
    from staq.storage.snapshots import read_snapshots

    config, folder = Config.load(run), run / "snapshots"
    if not folder.exists() and (run / AUDIT).exists():
        return [audits.Distance(**row) for row in json.loads((run / AUDIT).read_text())]
    n = len(list(read_snapshots(folder)))
    env = make_envs(config.env, config.n_envs, config.actions)
    policy: Any = build(config, env).policy
    env.close()
    wanted = {-(-n * (i + 1) // points) for i in range(points)}
    snapshots = tqdm(read_snapshots(folder), total=n, unit=" pushes", desc="audit")
    rows = list(audits.audit(policy.architecture, policy.n_critics, snapshots, wanted.__contains__))
    if not rows:
        raise ValueError(f"{run} has visited fewer than {audits.LEAST_STATES} states yet: let it go on.")
    (run / AUDIT).write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")
    draw(rows, run / "audit.png", f"{config.env}, seed {config.seed}")
    print(run / AUDIT, run / "audit.png", sep="\n")
    return rows


def _words(settings: Mapping[str, Any]) -> str:
    """What tells merged runs apart."""
    merged = settings["compression"] != "none"
    return f"η {settings['kl_weight']:g}, " + (f"tolerance {settings['merge_tolerance']:g}" if merged else "unmerged")


def _print(rows: Sequence[Distance]) -> None:
    print(
        f"{'pushes':>8}{'networks':>10}{'mean KL':>11}{'largest':>11}{'bound':>11}{'one update':>12}{'same greedy':>13}"
    )
    for row in rows:
        print(
            f"{row.pushes:8d}{row.networks:10d}{row.mean_kl:11.2e}{row.largest_kl:11.2e}{row.kl_bound:11.2e}"
            f"{row.median_policy_kl:12.2e}{row.greedy_agreement:13.2%}"
        )
    last = rows[-1]
    print(
        f"KL(exact; run's) is {last.mean_kl / last.median_policy_kl:.3f} of a median policy update, with "
        f"{last.networks} networks for {last.pushes} pushes, on {last.states} states visited last."
    )


def draw(rows: Sequence[Distance], out: Path, title: str) -> None:
    """Distances on the left, networks on the right, against pushes."""
    with _panels(out) as (left, right):
        pushes = [row.pushes for row in rows]
        for name, label, style in (
            ("median_policy_kl", "one policy update (median)", "k--"),
            ("kl_bound", "bound", ":"),
            ("largest_kl", "largest", "-"),
            ("mean_kl", "mean", "-"),
        ):
            left.plot(pushes, [getattr(row, name) for row in rows], style, label=label, marker=".")
        left.set(yscale="log", xlabel="pushes", ylabel="KL(exact; merged)", title=title)
        right.plot(pushes, [row.networks for row in rows], marker=".")
        right.set(xlabel="pushes", ylabel="networks", ylim=(0, None))
        left.legend(frameon=False, fontsize="small")


def draw_together(audited: Mapping[str, Sequence[Distance]], tolerances: Mapping[str, float], out: Path) -> None:
    """Distances as shares of a policy update and networks, a line per run; the worst distances against the tolerance.

    :param tolerances: by the same names
    """
    n_panels = 2 + (len(set(tolerances.values())) > 1)
    with _panels(out, n_panels) as (left, middle, *right):
        for name, rows in audited.items():
            pushes, shares = [row.pushes for row in rows], [row.mean_kl / row.median_policy_kl for row in rows]
            left.plot(pushes, shares, marker=".", label=name)
            middle.plot(pushes, [row.networks for row in rows], marker=".")
            for axis in right:
                axis.plot(tolerances[name], max(shares), "o", markerfacecolor="none", markersize=8)
        for axis in (left, *right):
            axis.axhline(0.5, color="k", linestyle="--", label="half of an update")
            axis.set(yscale="log")
        left.set(xlabel="pushes", ylabel="KL to exact / one update")
        middle.set(xlabel="pushes", ylabel="networks", ylim=(0, None))
        for axis in right:
            axis.set(xscale="log", xlabel="tolerance", ylabel="the same at worst")
        left.figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=n_panels, frameon=False)


@contextmanager
def _panels(out: Path, n: int = 2) -> Iterator[Any]:
    """So many panels, side by side, written to a file."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, n, figsize=(4.5 * n, 3.4), layout="constrained")
    yield axes
    for axis in axes:
        axis.grid(alpha=0.3)
    figure.savefig(out, dpi=110)
    plt.close(figure)
