"""``staq audit``: how far a run's policy is from exact mirror descent."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from staq.cli.options import whole_number

if TYPE_CHECKING:
    from staq.policy_improvement.audit import Distance


def add_command(commands: Any) -> None:
    """``staq audit``"""
    command = commands.add_parser(
        "audit",
        help="how far a run's policy is from exact mirror descent",
        description="Recomputes exact mirror descent from every network that a run with --keep-snapshots has pushed, "
        "and compares its policies along the run. Writes audit.json and audit.png into the run.",
    )
    command.set_defaults(command=audit)
    command.add_argument("run", type=Path, metavar="RUN")
    command.add_argument("--points", type=whole_number, default=20, help="policies along the run (%(default)s)")


def audit(options: argparse.Namespace) -> None:
    from tqdm import tqdm

    from staq.cli.runs import Config, build
    from staq.envs.make import make_envs
    from staq.policy_improvement import audit as audits
    from staq.storage.snapshots import read_snapshots

    run: Path = options.run
    config, folder = Config.load(run), run / "snapshots"
    n = len(list(read_snapshots(folder)))
    env = make_envs(config.env, config.n_envs, config.actions)
    policy: Any = build(config, env).policy
    env.close()
    points = {-(-n * (i + 1) // options.points) for i in range(options.points)}
    snapshots = tqdm(read_snapshots(folder), total=n, unit=" pushes", desc="audit")
    rows = list(audits.audit(policy.architecture, policy.n_critics, snapshots, points.__contains__))
    if not rows:
        raise ValueError(f"{run} has visited fewer than {audits.LEAST_STATES} states yet: let it go on.")
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
    (run / "audit.json").write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")
    draw(rows, run / "audit.png", f"{config.env}, seed {config.seed}")
    print(run / "audit.json", run / "audit.png", sep="\n")


def draw(rows: Sequence[Distance], out: Path, title: str) -> None:
    """Distances on the left, networks on the right, against pushes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
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
    for axis in (left, right):
        axis.grid(alpha=0.3)
    left.legend(frameon=False, fontsize="small")
    figure.savefig(out, dpi=110)
    plt.close(figure)
