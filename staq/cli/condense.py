"""``staq condense``: a trained policy in few networks, and what that costs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from staq.cli.options import whole_number
from staq.cli.trained import add_policy_arguments, policy_and_environment

if TYPE_CHECKING:
    import torch

STATES = 10_000
"""Visited by the policy, on which it is condensed."""
SIDE_BY_SIDE = 50
"""Environments."""


def add_command(commands: Any) -> None:
    """``staq condense``"""
    command = commands.add_parser(
        "condense",
        help="a trained policy in few networks, for deployment",
        description="Condenses the stack of a trained policy into few networks, measures what that changes, plays both "
        "and exports the small policies, with a figure of networks against divergence and return.",
    )
    command.set_defaults(command=condense)
    add_policy_arguments(command)
    command.add_argument("--networks", type=whole_number, nargs="+", default=[1], help="how many (1)")
    command.add_argument("--episodes", type=whole_number, default=100, help="to play with each (%(default)s)")
    command.add_argument("--seed", type=int, default=0)
    command.add_argument("--onnx", action="store_true", help="write each as an ONNX graph too")
    command.add_argument("--out", type=Path, default=Path("condensed"), metavar="FOLDER", help="(%(default)s)")


def condense(options: argparse.Namespace) -> None:
    from staq.cli.rollouts import play
    from staq.envs.make import make_envs
    from staq.policy_improvement import condensing
    from staq.storage.onnx_export import export_onnx

    policy, env_id, actions = policy_and_environment(options)
    options.out.mkdir(parents=True, exist_ok=True)
    env = make_envs(env_id, min(options.episodes, SIDE_BY_SIDE), actions)
    obs = visited(policy, make_envs(env_id, SIDE_BY_SIDE, actions), options.seed)
    whole = play(policy, env, options.episodes, True, options.seed).returns
    print(f"{env_id}: all networks, greedy return {_interval(whole)}")
    rows = []
    for n in options.networks:
        found = condensing.condense(policy, obs, n_networks=n)
        returns = play(found.policy, env, options.episodes, True, options.seed).returns
        rows.append((found, returns))
        folder = found.export(options.out / f"networks-{n}", env_id, actions == "boundary")
        if options.onnx:
            export_onnx(found.policy, options.out / f"networks-{n}.onnx", env_id, actions == "boundary")
        print(
            f"{found.networks} of {found.of_networks}: KL {found.kl:.2e}, same greedy action "
            f"{found.greedy_agreement:.2%}, greedy return {_interval(returns)} → {folder}"
        )
    draw(rows, whole, options.out / "condensed.png", env_id)
    print(options.out / "condensed.png")


def visited(policy: Any, env: Any, seed: int) -> torch.Tensor:
    """States that a policy visits, sampling its actions."""
    import torch

    from staq.envs.masks import masks_for

    env.seed(seed)
    obs, found = env.reset(), list[torch.Tensor]()
    with policy.seeded(seed):
        while len(found) * env.num_envs < STATES:
            found.append(policy.obs_to_tensor(obs)[0])
            obs = env.step(policy.predict(obs, action_masks=masks_for(policy, env))[0])[0]
    env.close()
    return torch.cat(found)


def _interval(returns: Any) -> str:
    """Mean and its 95 % interval over episodes."""
    return f"{returns.mean():.1f} ± {1.96 * returns.std(ddof=1) / len(returns) ** 0.5:.1f}"


def draw(rows: Sequence[tuple[Any, Any]], whole: Any, out: Path, title: str) -> None:
    """Divergence on the left, return on the right, against networks."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    networks = [found.networks for found, _ in rows]
    left.plot(networks, [found.kl for found, _ in rows], marker="o")
    scale = "log" if any(found.kl > 0 for found, _ in rows) else "linear"
    left.set(
        xlabel="networks", ylabel="KL(all; condensed)", yscale=scale, title=f"{title}, {rows[0][0].of_networks} in all"
    )
    errors = [1.96 * r.std(ddof=1) / len(r) ** 0.5 for _, r in rows]
    right.errorbar(networks, [r.mean() for _, r in rows], errors, marker="o", capsize=3, label="condensed")
    half = 1.96 * whole.std(ddof=1) / len(whole) ** 0.5
    right.axhspan(whole.mean() - half, whole.mean() + half, alpha=0.2, color="k", linewidth=0)
    right.axhline(whole.mean(), color="k", linestyle="--", label="all networks")
    right.set(xlabel="networks", ylabel="greedy return")
    right.legend(frameon=False)
    for axis in (left, right):
        axis.set_xscale("log", base=2)
        axis.set_xticks(networks, [str(n) for n in networks])
        axis.grid(alpha=0.3)
    figure.savefig(out, dpi=110)
    plt.close(figure)
