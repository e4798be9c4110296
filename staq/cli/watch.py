"""``staq watch``: a video of a trained policy."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from staq.cli.options import whole_number
from staq.cli.trained import add_policy_arguments, policy_and_environment


def add_command(commands: Any) -> None:
    """``staq watch``"""
    command = commands.add_parser("watch", help="a video of a trained policy")
    command.set_defaults(command=watch)
    add_policy_arguments(command)
    command.add_argument("--out", type=Path, help="an .mp4 or .gif; by default watch.mp4 in the run")
    command.add_argument("--episodes", type=whole_number, default=1)
    command.add_argument("--stochastic", action="store_true", help="sample actions instead of taking the likeliest")
    command.add_argument("--seed", type=int, default=0)


def watch(options: argparse.Namespace) -> None:
    from staq.cli.video import record_video

    policy, env_id, actions = policy_and_environment(options)
    default = options.run / "watch.mp4" if options.run.is_dir() else Path("watch.mp4")
    out = options.out or default
    scores = record_video(policy, env_id, actions, out, options.episodes, not options.stochastic, options.seed)
    print(f"{out}: {len(scores)} episode(s), return {', '.join(f'{score:g}' for score in scores)}")
