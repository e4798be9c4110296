"""A run: one training with everything it leaves behind, in one folder.

config.json        what was run: environment, preset, hyperparameters, seed, versions, commit
progress.csv       one line per iteration, under SB3's tags (and the same for TensorBoard)
monitor.csv        one line per training episode
evaluations.csv    one row per evaluation and mode; evaluations.npz has SB3's format
checkpoints/       to resume exactly (staq.storage.checkpoint)
snapshots/         with --keep-snapshots: every frozen network, for staq audit
model/             the final policy, exported; best_model/ the best of the evaluations
learning_curve.png
"""

from __future__ import annotations

import csv
import importlib.metadata
import io
import json
import platform
import subprocess
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.logger import CSVOutputFormat, Logger, TensorBoardOutputFormat
from stable_baselines3.common.monitor import ResultsWriter
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.vec_env import VecEnv

from staq import baselines
from staq.baselines.pqn import PQN
from staq.baselines.sb3_policy import SB3Policy, load_parameters
from staq.cli import presets
from staq.cli.options import checked_device
from staq.cli.progress import Interrupt, Progress
from staq.cli.rollouts import Rollouts, play, policy_of, read_rows, save_policy, unless_damaged
from staq.envs.make import make_envs
from staq.envs.masks import reader_for
from staq.hyperparameters import chosen
from staq.loop import PolicyMirrorDescent
from staq.registry import ALGORITHMS
from staq.storage.atomic_files import locked, replace_text
from staq.storage.checkpoint import Checkpoints, holds_checkpoints, newest_state, resume
from staq.storage.snapshots import Snapshots
from staq.version import __version__

DEFAULT_EPISODES = 10
"""Per evaluation and mode."""
LOG_LINES = 1000
"""In a run, at most about twice as many: an iteration of λ-returns is a fraction of a second."""
BASELINES_SAVE_EVERY = 5000
"""Environment steps between two checkpoints of an algorithm that has no iterations of ours."""


@dataclass(frozen=True)
class Config:
    """What a run is, complete: the same configuration on the same machine gives the same rows."""

    env: str
    """Name of a registered Gymnasium environment."""
    policy: str
    """"MlpPolicy" or "CnnPolicy"."""
    hyperparameters: dict[str, Any]
    """Arguments of the algorithm that differ from its defaults."""
    preset: str
    """The preset that they come from."""
    timesteps: int
    """Environment steps in all."""
    seed: int
    n_envs: int
    """Training environments in parallel."""
    eval_every: int
    """Environment steps between evaluations."""
    eval_episodes: int
    """Episodes per evaluation and mode."""
    threads: int
    """CPU threads; results differ in the last bits between thread counts."""
    device: str = "cpu"
    algo: str = "staq"
    """Name of the algorithm, as on the command line."""
    actions: str | None = None
    """How continuous actions become finite: "factored" or "boundary"; None where they are finite already."""
    keep_snapshots: bool = False
    """Whether every frozen network stays on disk, for ``staq audit``."""

    def save(self, folder: Path, command: str) -> None:
        content = {**asdict(self), "command": command, "made_by": provenance()}
        replace_text(folder / "config.json", json.dumps(content, indent=2) + "\n")

    @classmethod
    def load(cls, folder: Path) -> Config:
        path = folder / "config.json"
        if not path.exists():
            raise FileNotFoundError(
                f"{folder} is not a run: it has no config.json. staq train names a run's folder when it begins."
            )
        try:
            content = json.loads(path.read_text())
            config = cls(**{key: value for key, value in content.items() if key not in ("command", "made_by")})
        except (json.JSONDecodeError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} is not the configuration of a run of this version: {error}") from error
        if config.algo not in ALGORITHMS:
            raise ValueError(
                f"{folder} is a run of the algorithm {config.algo!r}, which is not in staq.registry.ALGORITHMS: put it "
                "there as the program did that made the run, and call staq.cli.main.main([…]) from Python."
            )
        return config


def configured(
    env: str,
    preset: presets.Preset,
    algo: str = "staq",
    *,
    overrides: dict[str, Any] | None = None,
    policy: str | None = None,
    timesteps: int | None = None,
    seed: int = 0,
    n_envs: int | None = None,
    eval_every: int | None = None,
    eval_episodes: int = DEFAULT_EPISODES,
    threads: int | None = None,
    device: str = "cpu",
    actions: str | None = None,
    keep_snapshots: bool = False,
) -> Config:
    """A run by a preset, but for what is said otherwise."""
    chosen("algorithm", algo, ALGORITHMS)
    if algo not in preset.algorithms:
        raise ValueError(f"The preset {preset.name} is for {', '.join(preset.algorithms)}, not for {algo}.")
    hyperparameters = preset.hyperparameters | (overrides or {})
    evaluation = hyperparameters.get("evaluation", "replay")
    if ALGORITHMS[algo].ours and presets.family(evaluation) != preset.evaluation:
        raise ValueError(
            f"The preset {preset.name} is for evaluation {preset.evaluation!r}, not {evaluation!r}: leave out --preset "
            f"for the one that is, {presets.for_environment(env, algo, evaluation).name}."
        )
    presets.check_hyperparameters(hyperparameters, algo)
    timesteps = timesteps or preset.timesteps
    interval = (presets.defaults(algo, evaluation) | hyperparameters).get("policy_update_interval", 1)
    return Config(
        env=env,
        policy=policy or preset.policy,
        hyperparameters=hyperparameters,
        preset=preset.name,
        timesteps=timesteps,
        seed=seed,
        n_envs=n_envs or preset.n_envs,
        eval_every=eval_every or max(timesteps // 50, interval if isinstance(interval, int) else 1),
        eval_episodes=eval_episodes,
        threads=threads or torch.get_num_threads(),
        device=device,
        algo=algo,
        actions=actions,
        keep_snapshots=keep_snapshots,
    )


def provenance() -> dict[str, Any]:
    """Versions, commit and machine that made a result."""
    packages = ("torch", "numpy", "gymnasium", "stable-baselines3")
    return {
        "staq": __version__,
        "commit": _commit(),
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in packages},
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
    }


def _commit() -> str | None:
    """Of this library, where it is run from its repository."""
    here = Path(__file__)

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=here.parent, capture_output=True, text=True, check=True).stdout

    try:
        git("ls-files", "--error-unmatch", here.name)  # or it is installed inside of another repository
        return git("rev-parse", "HEAD").strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def train(
    config: Config,
    folder: Path,
    command: str,
    resuming: bool = False,
    wandb_project: str | None = None,
    announce: Callable[[BaseAlgorithm], None] = lambda model: None,
) -> tuple[BaseAlgorithm, int]:
    """Runs a configuration into a folder, or continues the run that is there.

    :param command: what the user typed, for the record
    :param announce: called once nothing is in the way any more
    :return: the model, and the signal that interrupted the run, 0 if it is finished
    """
    checked_device(config.device)  # where SB3 would take a CPU for a GPU that is not there
    torch.set_num_threads(config.threads)
    checkpoints, step = folder / "checkpoints", 0
    begin_again = resuming and _ended_before_its_first_checkpoint(config, folder)
    resuming = resuming and not begin_again
    with ExitStack() as closing:
        env = make_envs(config.env, config.n_envs, config.actions)
        closing.callback(env.close)
        eval_env = make_envs(config.env, 2 * config.eval_episodes, config.actions)
        closing.callback(eval_env.close)
        model = build(config, env)
        closing.enter_context(_weights_and_biases(wandb_project, config))
        if isinstance(model, PolicyMirrorDescent):
            # Raises where masks are required and there are none.
            reader_for(env, model.shared.masks, model.factors, model.device)
        # All that can be wrong with a configuration is known by now: only then is anything written.
        if not resuming:
            try:
                folder.mkdir(parents=True, exist_ok=begin_again)
            except FileExistsError:  # made since the start, by another one
                raise taken(folder) from None
        checkpoints.mkdir(exist_ok=True)
        closing.enter_context(locked(checkpoints / ".lock", wait=False))
        if resuming:
            state = newest_state(checkpoints)
            step = state["num_timesteps"]
            _cut_logs(folder, step, state["episodes_ended"])
        if not resuming or Config.load(folder) != config:
            config.save(folder, command)
        monitor = folder / "monitor.csv"
        env.results_writer = ResultsWriter(
            str(monitor),
            header={"t_start": env.t_start, "env_id": config.env},
            override_existing=not (resuming and monitor.exists()),
        )
        if resuming:
            resume(model, checkpoints)
        logger = _logger(folder, append=resuming)
        closing.callback(logger.close)
        model.set_logger(logger)
        rollouts = Rollouts(eval_env, folder, config.eval_every, config.seed)
        if resuming or begin_again:
            rollouts.resume_at(step)
        interrupt = closing.enter_context(Interrupt())
        every = 1 if ALGORITHMS[config.algo].ours else BASELINES_SAVE_EVERY
        saving = Checkpoints(checkpoints, every, asked=lambda: bool(interrupt.requested))
        progress = Progress(config)
        closing.callback(progress.close)  # before an error is shown, not on the same line and again after it
        callbacks = [rollouts, saving, progress, interrupt]
        if config.keep_snapshots:
            callbacks.insert(0, Snapshots(folder / "snapshots"))  # first, so that no checkpoint lacks one
        announce(model)
        whole: dict[str, Any] = {"whole_iterations": True} if ALGORITHMS[config.algo].ours else {}
        try:
            model.learn(
                max(0, config.timesteps - model.num_timesteps),
                callback=callbacks,
                reset_num_timesteps=not resuming,
                log_interval=_log_interval(config, model),
                **whole,
            )
        except FloatingPointError as error:
            saved = f"The last good checkpoint is number {saving.last}" if saving.last else "There is no checkpoint yet"
            raise FloatingPointError(f"{error} {saved} in {checkpoints}.") from error
        if not interrupt.stopped:
            save_policy(model, folder / "model")
    return model, interrupt.stopped


def taken(folder: Path) -> FileExistsError:
    is_run = (folder / "config.json").exists()
    hint = f", or continue it with staq train --resume {folder}" if is_run else "."
    return FileExistsError(f"{folder} exists, and no run is ever overwritten: name another --out{hint}")


def _log_interval(config: Config, model: BaseAlgorithm) -> int:
    """Iterations between two lines of the log; of SB3's models, what they have themselves."""
    if isinstance(model, PolicyMirrorDescent):
        return max(1, config.timesteps // model.policy_update_interval // LOG_LINES)
    if isinstance(model, PQN):
        return max(1, config.timesteps // (model.n_steps * model.n_envs) // LOG_LINES)
    return 1 if isinstance(model, OnPolicyAlgorithm) else 4


def _ended_before_its_first_checkpoint(config: Config, folder: Path) -> bool:
    """Such a run left nothing to resume and begins again; one whose checkpoints were taken away does not."""
    if holds_checkpoints(folder / "checkpoints"):
        return False
    evaluation = config.hyperparameters.get("evaluation", "replay")
    settings = presets.defaults(config.algo, evaluation) | config.hyperparameters
    first = settings.get("policy_update_interval", BASELINES_SAVE_EVERY)
    # Twice, since the rollouts of PPO and TRPO do not end where checkpoints are due.
    return all(row.timesteps <= 2 * first for row in read_rows(folder))


def build(config: Config, env: VecEnv) -> BaseAlgorithm:
    """The model that a configuration describes."""
    record, policy = ALGORITHMS[config.algo], config.policy
    if isinstance(env.observation_space, spaces.Dict):  # of which a preset's policy, for vectors, knows nothing
        policy = "MultiInputPolicy"
    if record.ours:
        model: BaseAlgorithm = record.load()(
            policy, env, seed=config.seed, device=config.device, **config.hyperparameters
        )
        return model
    if config.actions == "factored":
        raise ValueError(f"{config.algo} has no factored actions: use --actions boundary.")
    return baselines.build(
        config.algo, policy, env, config.hyperparameters, config.timesteps, config.seed, config.device
    )


def trained_baseline(config: Config, folder: Path) -> SB3Policy:
    """The baseline whose parameters a run saved in ``folder``."""
    model = build(config, make_envs(config.env, 1, config.actions))
    load_parameters(model, folder)
    return SB3Policy(model)


def final_evaluation(model: BaseAlgorithm, config: Config, episodes: int) -> tuple[float, float]:
    """Greedy mean and minimum over fresh episodes."""
    env = make_envs(config.env, min(episodes, 20), config.actions)
    returns = play(policy_of(model), env, episodes, greedy=True, seed=config.seed + 1_000_003).returns
    env.close()
    return float(returns.mean()), float(returns.min())


def _logger(folder: Path, append: bool) -> Logger:
    path = folder / "progress.csv"
    earlier = path.read_text() if append and path.exists() else ""
    table = CSVOutputFormat(str(path))  # always begins an empty file
    if earlier:
        table.file.write(earlier)
        table.file.flush()
        table.keys = next(csv.reader(io.StringIO(earlier)))
    return Logger(str(folder), [table, TensorBoardOutputFormat(str(folder / "tensorboard"))])


def read_log(folder: Path) -> list[dict[str, str]]:
    """The lines of a run's log, by SB3's tags."""
    path = folder / "progress.csv"
    if not path.exists():
        return []
    with path.open() as file:
        return list(csv.DictReader(file))


def _cut_logs(folder: Path, timesteps: int, episodes: int) -> None:
    """Drops what was logged after the checkpoint, since it will be logged again."""
    progress, monitor = folder / "progress.csv", folder / "monitor.csv"
    with unless_damaged(progress):
        if progress.exists():
            with progress.open() as file:
                header, *rows = list(csv.reader(file)) or [[]]
            column = header.index("time/total_timesteps") if header else 0
            whole = [row for row in rows if len(row) == len(header) and row[column].isdecimal()]
            if len(whole) < len(rows):
                warnings.warn(f"{progress}: {len(rows) - len(whole)} lines are damaged and were dropped.", stacklevel=2)
            text = io.StringIO()
            kept = [row for row in whole if int(row[column]) <= timesteps]
            csv.writer(text, lineterminator="\n").writerows([header, *kept] if header else [])
            replace_text(progress, text.getvalue())
    with unless_damaged(monitor):
        if monitor.exists():
            lines = monitor.read_text().splitlines(keepends=True)
            if lines and not lines[0].startswith("#"):
                raise ValueError("it does not begin as a monitor's file does")
            replace_text(monitor, "".join(lines[: 2 + episodes]))  # a comment and a header come first


@contextmanager
def _weights_and_biases(project: str | None, config: Config) -> Iterator[None]:
    if project is None:
        yield
        return
    try:
        import wandb
    except ImportError as error:
        raise ModuleNotFoundError("Weights & Biases is not installed: pip install 'staq[wandb]'") from error
    run = wandb.init(project=project, config=asdict(config), sync_tensorboard=True)
    try:
        yield
    finally:
        run.finish()
