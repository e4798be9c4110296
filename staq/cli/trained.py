"""A trained policy from a run, an export or the zip of a model, and its environment."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from gymnasium import spaces

from staq.registry import ALGORITHMS


def add_policy_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("run", type=Path, metavar="RUN", help="a run, an exported policy, or the zip of model.save")
    command.add_argument("--best", action="store_true", help="the best policy of the run's evaluations")
    command.add_argument("--env", help="the environment, where the file does not say")
    command.add_argument(
        "--trust", action="store_true", help="load what can run any code: a pickled zip, a module's environment"
    )


def policy_and_environment(options: argparse.Namespace) -> tuple[Any, str, str | None]:
    """The policy of a run, an export or a zip of ``model.save``; its environment, and actions there."""
    from staq.cli.runs import Config, trained_baseline
    from staq.storage.export import DESCRIPTION, load_policy

    path: Path = options.run
    policy: Any
    environment: str | None = None
    actions: str | None = None
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist.")
    if path.is_file():
        policy = _saved_model(path, options.trust)
    else:
        run, inner = path, path / ("best_model" if options.best else "model")
        if path.name in ("model", "best_model") or (path / DESCRIPTION).exists():
            run, inner = path.parent, path
        if not inner.exists():
            if not (run / "config.json").exists():
                raise FileNotFoundError(f"{path} is neither a run nor an exported policy.")
            raise FileNotFoundError(
                f"{path} holds no {inner.name}: is the run finished? (--best takes the best so far)"
            )
        config = Config.load(run) if (run / "config.json").exists() else None
        if config is not None and not ALGORITHMS[config.algo].ours:
            _check_that_nothing_is_imported(config.env, options)
            policy, environment, actions = trained_baseline(config, inner), config.env, config.actions
        else:
            policy, description = load_policy(inner)
            # A run knows the module too that an environment is from.
            environment = description["environment"] if config is None else config.env
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


def _saved_model(path: Path, trusted: bool) -> Any:
    """The policy of a model's zip: of the class that it names, or (trusted) the first that can read it."""
    from staq.cli.rollouts import policy_of
    from staq.storage import model_file

    try:
        kind = model_file.read(path, trusted).kind
    except model_file.NeedsTrust:
        raise
    except Exception as error:
        if not trusted:
            raise _no_model(path, error) from error
        kind = ""  # a baseline's, which none of ours reads
    candidates = [record for record in ALGORITHMS.values() if record.class_name == kind] or list(ALGORITHMS.values())
    problems = []
    for record in candidates:
        trust = {"trust": trusted} if record.ours else {}
        if not (record.ours or trusted):
            continue
        try:
            return policy_of(record.load().load(path, device="cpu", **trust))
        except Exception as error:  # unpickling a foreign file can fail in any way
            problems.append(error)
    raise _no_model(path, problems[0])


def _no_model(path: Path, problem: Exception) -> ValueError:
    reason = str(problem).splitlines()[0]
    if reason.startswith(str(path)):
        return ValueError(reason)
    return ValueError(f"{path} is not a model saved by StaQ, its variants or the baselines: {reason}")


def _boundary_if_needed(policy: Any, path: Path, env_id: str) -> str | None:
    """For what does not say how its actions were made: those of the environment, or its boundary actions."""
    from staq.actions import BoundaryActions
    from staq.envs.make import make_env

    env = make_env(env_id)
    wanted, offered = policy.action_space, env.action_space
    if wanted == offered:
        return None
    if isinstance(offered, spaces.Box) and BoundaryActions(env).action_space == wanted:
        return "boundary"
    raise ValueError(f"{path} acts in {wanted}, and {env_id} takes {offered}: name its own environment with --env.")
