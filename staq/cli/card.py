"""``staq card``: a folder for others to load a policy from, with a model card, for the Hugging Face hub."""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from staq.cli.options import whole_number
from staq.cli.trained import add_policy_arguments, policy_and_environment

SIDE_BY_SIDE = 50
"""Environments."""
SEED = 1_000_000
"""Of the episodes: no run is evaluated on it."""
FILM = "replay.mp4"
"""The name under which the hub shows it."""
TITLE = "# {algo} on {env}"
LOADING = """## How to load it

```sh
pip install 'staq[hub]'
```

```python
import gymnasium
import staq

policy, description = staq.load_policy("hf:{repo}")
env = gymnasium.make("{env}")
obs, _ = env.reset()
action, _ = policy.predict(obs, deterministic=True)
policy.action_probabilities(obs)
```

Weights are safetensors and the rest is JSON: nothing is unpickled, and no other file of this repository is fetched."""


def add_command(commands: Any) -> None:
    """``staq card``"""
    command = commands.add_parser(
        "card",
        help="a model card and what belongs to it, for the Hugging Face hub",
        description="Makes a folder with the exported policy, a model card (scores with intervals, configuration, how "
        "to load it), a film and the learning curve, and uploads it if asked to.",
    )
    command.set_defaults(command=card)
    add_policy_arguments(command)
    command.add_argument("--out", type=Path, default=Path("card"), metavar="FOLDER", help="(%(default)s)")
    command.add_argument("--episodes", type=whole_number, default=100, help="to play for the scores (%(default)s)")
    command.add_argument(
        "--seeds", type=Path, nargs="+", default=[], metavar="RUN", help="runs with other seeds, for scores over seeds"
    )
    command.add_argument("--no-film", action="store_true", help="for environments that cannot be rendered")
    command.add_argument("--push", metavar="USER/REPO", help="upload it to the hub")


def card(options: argparse.Namespace) -> None:
    from staq.policies import StaQPolicy
    from staq.storage import hub
    from staq.storage.export import export_policy

    repo = hub.checked(options.push or "USER/REPO")
    out: Path = options.out
    if options.run.exists() and out.exists():
        raise FileExistsError(f"{out} exists, and nothing is overwritten: name another --out.")
    policy, env_id, actions = policy_and_environment(options)
    if not isinstance(policy, StaQPolicy):
        raise ValueError(f"{options.run} is a baseline, whose policy load_policy does not load: a card is for ours.")
    config = _config(options.run)
    scores = _scores(policy, env_id, actions, options.episodes)
    over_seeds = _over_seeds([options.run, *options.seeds]) if options.seeds else None
    export_policy(policy, out, env_id, actions == "boundary")
    film = not options.no_film and _filmed(policy, env_id, actions, out / FILM)
    (out / "README.md").write_text(_text(config, env_id, actions, repo, scores, over_seeds, film))
    for name in ("config.json", "evaluations.csv", "learning_curve.png"):
        if (options.run / name).exists():
            shutil.copy(options.run / name, out)
    print(out / "README.md")
    if options.push:
        print(hub.push(out, repo))


def _filmed(policy: Any, env_id: str, actions: str | None, out: Path) -> bool:
    """Whether there is a film of an episode now."""
    from staq.cli.video import CannotBeSeen, record_video

    try:
        record_video(policy, env_id, actions, out, 1, True, SEED)
    except CannotBeSeen as error:
        out.unlink(missing_ok=True)
        print(f"No film: {error}")
        return False
    return True


def _config(run: Path) -> dict[str, Any]:
    """What a run says of itself; nothing, if this is an export without one."""
    path = run / "config.json"
    return dict(json.loads(path.read_text())) if path.exists() else {}


def _scores(policy: Any, env_id: str, actions: str | None, episodes: int) -> dict[str, np.ndarray]:
    """Returns of fresh episodes, by mode."""
    from staq.cli.rollouts import play
    from staq.envs.make import make_envs

    env = make_envs(env_id, min(episodes, SIDE_BY_SIDE), actions)
    found = {mode: play(policy, env, episodes, mode == "greedy", SEED).returns for mode in ("greedy", "stochastic")}
    env.close()
    return found


def _over_seeds(runs: list[Path]) -> np.ndarray:
    """The greedy return that every run ended with."""
    from staq.cli.plot import kind_of
    from staq.cli.rollouts import read_rows
    from staq.cli.runs import Config

    configs, ends = [Config.load(run) for run in runs], []
    for run, config in zip(runs, configs, strict=True):
        if (config.env, kind_of(config)) != (configs[0].env, kind_of(configs[0])):
            raise ValueError(f"{run} differs from {runs[0]} in more than its seed: leave it out of --seeds.")
        rows = [row for row in read_rows(run) if row.mode == "greedy"]
        if not rows:
            raise ValueError(f"{run} has no evaluation yet: leave it out of --seeds.")
        ends.append(rows[-1].mean)
    return np.array(ends)


def interval(values: np.ndarray) -> str:
    """Mean and 95 % interval, Student's, where there are two values or more."""
    if len(values) < 2:
        return f"{values.mean():.1f}"
    half = stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))
    return f"{values.mean():.1f} ± {half:.1f}"


def _text(
    config: dict[str, Any],
    env_id: str,
    actions: str | None,
    repo: str,
    scores: dict[str, np.ndarray],
    over_seeds: np.ndarray | None,
    film: bool,
) -> str:
    """The model card, whose head the hub reads."""
    n = len(scores["greedy"])
    lines = [f"| {mode} | {interval(r)} | {r.min():.1f} | {r.max():.1f} |" for mode, r in scores.items()]
    table = "\n".join(["| actions | return | worst | best |", "|---|--:|--:|--:|", *lines])
    said = (
        f"{n} fresh episodes of this policy, means with 95 % intervals over episodes: these say nothing of other seeds."
    )
    if over_seeds is not None:
        said += (
            f" Over {len(over_seeds)} seeds, greedy, at the end of training: {interval(over_seeds)} (95 % interval)."
        )
    settings = {key: value for key, value in config.items() if key != "made_by"}
    parts = [
        TITLE.format(algo=config.get("algo", "StaQ"), env=env_id),
        "A policy of staq: policy mirror descent with discrete actions.",
        *([f'<video src="{FILM}" controls autoplay loop muted></video>'] if film else []),
        f"## Scores\n\n{table}\n\n{said}",
        LOADING.format(repo=repo, env=env_id),
        *([f"## Configuration\n\n```json\n{json.dumps(settings, indent=2)}\n```"] if settings else []),
    ]
    if actions == "boundary":
        parts.insert(-1, "Its actions are those of `staq.BoundaryActions(env)`.")
    return f"---\n{_head(config, env_id, scores['greedy'])}\n---\n\n" + "\n\n".join(parts) + "\n"


def _head(config: dict[str, Any], env_id: str, returns: np.ndarray) -> str:
    """The card's metadata, as YAML."""
    try:
        from huggingface_hub import EvalResult, ModelCardData
    except ImportError as error:
        raise ModuleNotFoundError("A card needs a package of an extra: pip install 'staq[hub]'") from error
    result = EvalResult(
        task_type="reinforcement-learning",
        task_name="reinforcement-learning",
        dataset_type=env_id,
        dataset_name=env_id,
        metric_type="mean_reward",
        metric_name="mean_reward",
        metric_value=f"{returns.mean():.2f} +/- {returns.std():.2f}",
    )
    return ModelCardData(
        library_name="staq",
        tags=[env_id, "reinforcement-learning", "deep-reinforcement-learning", "staq", "stable-baselines3"],
        model_name=config.get("algo", "staq"),
        eval_results=[result],
    ).to_yaml()
