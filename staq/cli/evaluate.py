"""``staq eval``: returns of a trained policy."""

from __future__ import annotations

import argparse
from typing import Any

from staq.cli.options import whole_number
from staq.cli.trained import add_policy_arguments, policy_and_environment

MOST_ENVS = 50
"""Environments that are played side by side."""


def add_command(commands: Any) -> None:
    """``staq eval``"""
    command = commands.add_parser("eval", help="returns of a trained policy")
    command.set_defaults(command=play_episodes)
    add_policy_arguments(command)
    command.add_argument("--episodes", type=whole_number, default=20)
    command.add_argument("--seed", type=int, default=0)


def play_episodes(options: argparse.Namespace) -> None:
    from staq.cli.rollouts import play
    from staq.envs.make import make_envs

    policy, env_id, actions = policy_and_environment(options)
    env = make_envs(env_id, min(options.episodes, MOST_ENVS), actions)
    for mode in ("greedy", "stochastic"):
        rewards, lengths, _ = play(policy, env, options.episodes, mode == "greedy", options.seed)
        print(
            f"{env_id}  {mode:10}  return {rewards.mean():.2f} ± {rewards.std():.2f} (min {rewards.min():.2f}, "
            f"max {rewards.max():.2f}), length {lengths.mean():.0f}, {len(rewards)} episodes"
        )
