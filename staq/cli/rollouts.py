"""Returns of a policy, greedy and stochastic, as rows that a figure can be rebuilt from."""

from __future__ import annotations

import csv
import math
import time
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.type_aliases import PolicyPredictor
from stable_baselines3.common.vec_env import VecEnv

from staq.baselines.sb3_policy import SB3Policy, save_parameters
from staq.envs.masks import masks_for
from staq.envs.sequential_vec_env import SequentialVecEnv
from staq.loop import PolicyMirrorDescent

ROWS, SB3_ROWS = "evaluations.csv", "evaluations.npz"


class SamplingPolicy(PolicyPredictor, Protocol):
    """A policy whose draws can be seeded for a while."""

    def seeded(self, seed: int) -> AbstractContextManager[None]: ...


@dataclass(frozen=True)
class Returns:
    """One row: how a policy did after so many steps."""

    timesteps: int
    mode: str
    """"greedy" takes the likeliest action, "stochastic" samples the policy: ours without ε, DQN's by its ε."""
    episodes: int
    mean: float
    """Mean return, unscaled."""
    std: float
    """Standard deviation over episodes; it says nothing about other seeds."""
    minimum: float
    mean_length: float
    seconds: float
    """Wall-clock time so far, evaluations included."""
    core_seconds: float = math.nan
    """CPU time of training so far, all threads together, evaluations left out; NaN in rows of before it was counted."""


class Player:
    """A policy in environments of which it plays those that have episodes left; it is told what is allowed there."""

    def __init__(self, policy: PolicyPredictor, env: VecEnv) -> None:
        self.policy, self.env = policy, env
        self.going = np.ones(env.num_envs, dtype=bool)

    def rest(self, i: int) -> None:
        """Leaves an environment as it is: the longest of many episodes would otherwise be paid for by all of them."""
        if isinstance(self.env.unwrapped, SequentialVecEnv):  # others step it, by an action that may be forbidden
            self.going[i] = False
            self.env.unwrapped.resting[i] = True

    def predict(
        self, observation: Any, state: Any = None, episode_start: Any = None, deterministic: Any = False
    ) -> tuple[np.ndarray, Any]:
        going = self.going
        seen = {k: v[going] for k, v in observation.items()} if isinstance(observation, dict) else observation[going]
        masks, greedy = masks_for(self.policy, self.env), np.broadcast_to(deterministic, going.shape)[going]
        given = {} if masks is None else {"action_masks": masks[going]}
        chosen, _ = self.policy.predict(seen, None, None, greedy, **given)  # type: ignore[arg-type]
        actions = np.zeros((len(going), *chosen.shape[1:]), chosen.dtype)
        actions[going] = chosen
        return actions, None


class Episodes(NamedTuple):
    """Whole episodes, one entry each."""

    returns: np.ndarray
    lengths: np.ndarray
    played_by: np.ndarray
    """Index of the environment."""


def play(policy: SamplingPolicy, env: VecEnv, episodes: int, greedy: bool | np.ndarray, seed: int) -> Episodes:
    """Whole episodes of counted environments. They depend on the seed and the policy, and change neither.

    :param greedy: in which environments to take the likeliest action: all, none, or a mask [environments]
    """
    played_by: list[int] = []
    player = Player(policy, env)

    def note_the_end(of_loop: dict[str, Any], _: dict[str, Any]) -> None:
        i = of_loop["i"]
        if of_loop["done"]:
            played_by.append(i)
            if of_loop["episode_counts"][i] + 1 == of_loop["episode_count_targets"][i]:
                player.rest(i)

    env.seed(seed)
    with policy.seeded(seed):
        returns, lengths = evaluate_policy(
            player,
            env,
            episodes,
            deterministic=greedy,  # type: ignore[arg-type]  # handed on to the policy as it is
            callback=note_the_end,
            return_episode_rewards=True,
        )
    return Episodes(np.array(returns), np.array(lengths), np.array(played_by))


class Rollouts(BaseCallback):
    """Evaluates the policy every so many steps, at the boundary of an iteration, and exports the best one.

    An evaluation is seeded by the run's seed and its step, so a resumed run has the same rows.

    :param env: environments of its own, two per episode: a greedy and a stochastic one are played side by side, since
        a stack that is read for one observation costs little more for two
    :param folder: where ``evaluations.csv``, SB3's ``evaluations.npz`` and ``best_model`` go
    :param every: environment steps between two evaluations
    """

    def __init__(self, env: VecEnv, folder: Path, every: int, seed: int) -> None:
        super().__init__()
        self.env = env
        self.folder = folder
        self.every = every
        self.seed = seed
        self.seconds_before = self.core_seconds = 0.0
        self.done, self.best = 0, -np.inf
        """Steps at the last evaluation, and the best greedy mean of all."""
        self.greedy: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def resume_at(self, timesteps: int) -> None:
        """Keeps the rows of an earlier sitting; one at the very step of the checkpoint is made again, and logged."""
        rows: list[Returns] = []
        with unless_damaged(self.folder / ROWS):
            rows = [row for row in _rows_in(self.folder / ROWS) if row.timesteps <= timesteps]
        if rows:
            self.seconds_before, self.core_seconds = rows[-1].seconds, rows[-1].core_seconds
        write_rows(self.folder, [row for row in rows if row.timesteps < timesteps])
        greedy = [row for row in rows if row.timesteps < timesteps and row.mode == "greedy"]
        self.done = max((row.timesteps for row in greedy), default=0)
        self.best = max((row.mean for row in greedy), default=-np.inf)
        with unless_damaged(self.folder / SB3_ROWS):
            if (self.folder / SB3_ROWS).exists():
                with np.load(self.folder / SB3_ROWS) as saved:
                    triples = zip(saved["timesteps"], saved["results"], saved["ep_lengths"], strict=True)
                    self.greedy = {int(t): (r, n) for t, r, n in triples if t < timesteps}

    def _on_training_start(self) -> None:
        self.since = time.process_time()

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        self._play_if_due()

    def _on_training_end(self) -> None:
        if getattr(self.model, "at_boundary", True):
            self._play_if_due()

    def _play_if_due(self) -> None:
        if self.num_timesteps // self.every > self.done // self.every:
            self.core_seconds += time.process_time() - self.since
            self.record()
            self.since = time.process_time()

    def record(self) -> None:
        """One row per mode; the best greedy policy so far is exported."""
        seed = int(np.random.SeedSequence([self.seed, self.num_timesteps]).generate_state(1)[0])
        seconds = self.seconds_before + (time.time_ns() - self.model.start_time) / 1e9
        greedy = np.arange(self.env.num_envs) < self.env.num_envs // 2
        played = play(policy_of(self.model), self.env, self.env.num_envs, greedy, seed)
        rows = []
        for mode, environments in (("greedy", greedy), ("stochastic", ~greedy)):
            chosen = environments[played.played_by]
            rewards, lengths = played.returns[chosen], played.lengths[chosen]
            row = Returns(
                timesteps=self.num_timesteps,
                mode=mode,
                episodes=len(rewards),
                mean=round(float(rewards.mean()), 4),
                std=round(float(rewards.std()), 4),
                minimum=round(float(rewards.min()), 4),
                mean_length=round(float(lengths.mean()), 2),
                seconds=round(seconds, 1),
                core_seconds=round(self.core_seconds, 1),
            )
            rows.append(row)
            self.logger.record(f"eval/{mode}_reward", row.mean)
            if mode == "greedy":
                self.greedy[self.num_timesteps] = (rewards, lengths)
                self.logger.record("eval/mean_reward", row.mean)
                self.logger.record("eval/mean_ep_length", row.mean_length)
        write_rows(self.folder, [*read_rows(self.folder), *rows])
        partial = self.folder / f"partial-{SB3_ROWS}"
        np.savez(
            partial,
            timesteps=np.array(list(self.greedy)),
            results=np.array([r for r, _ in self.greedy.values()]),
            ep_lengths=np.array([n for _, n in self.greedy.values()]),
        )
        partial.replace(self.folder / SB3_ROWS)
        self.done = self.num_timesteps
        if rows[0].mean > self.best:
            self.best = rows[0].mean
            save_policy(self.model, self.folder / "best_model")


@contextmanager
def unless_damaged(path: Path) -> Iterator[None]:
    """Sets a file that cannot be read aside, and says so: no run is to end for want of its log."""
    try:
        yield
    except (ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile, csv.Error) as error:
        aside = path.with_name(f"{path.name}.damaged")
        path.replace(aside)
        warnings.warn(f"{path} cannot be read ({error}): set aside as {aside.name}, and begun anew.", stacklevel=3)


def policy_of(model: BaseAlgorithm) -> SamplingPolicy:
    """What plays for a model: our policies themselves, SB3's models with their exploration."""
    return model.policy if isinstance(model, PolicyMirrorDescent) else SB3Policy(model)


def save_policy(model: BaseAlgorithm, folder: Path) -> None:
    """The policy as data: an export of ours, the parameters of SB3's, whose run has the rest."""
    if isinstance(model, PolicyMirrorDescent):
        model.export(folder)
    else:
        save_parameters(model, folder)


def read_rows(folder: Path) -> list[Returns]:
    """The evaluations of a run."""
    path = folder / ROWS
    try:
        return _rows_in(path)
    except (KeyError, TypeError, ValueError, csv.Error) as error:
        raise ValueError(f"{path} is damaged ({error}): copy it again from where it was made.") from error


def _rows_in(path: Path) -> list[Returns]:
    if not path.exists():
        return []
    types = {"int": int, "float": float, "str": str}
    with path.open() as file:
        lines = list(csv.DictReader(file))
    named = [f for f in fields(Returns) if f.default is MISSING or (lines and f.name in lines[0])]
    return [Returns(**{f.name: types[str(f.type)](line[f.name]) for f in named}) for line in lines]


def write_rows(folder: Path, rows: list[Returns]) -> None:
    """All rows at once, under the file's name only when they are whole."""
    partial = folder / f"{ROWS}.partial"
    with partial.open("w", newline="") as file:
        writer = csv.DictWriter(file, [f.name for f in fields(Returns)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)
    partial.replace(folder / ROWS)
