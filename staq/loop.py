"""The loop that StaQ and its relatives share: entropy-regularised policy iteration.

Each iteration k has three acts (Alg. 1 of the paper):

    collect    ``policy_update_interval`` environment steps under the fixed policy π_k
    evaluate   as many gradient steps on the soft Bellman target under π_k      → q_k
    improve    the policy update; StaQ pushes q_k onto its stack                → π_{k+1}

An algorithm (staq.family) is this loop with an update (staq.updates).

    paper   here
    τ_k     ``step_size.entropy_weight``, annealed from ``ent_weight_init`` to ``ent_weight_final``, over ln|A|
    η       ``kl_weight``
    α, β    ``step_size.alpha``, ``step_size.beta``
    ξ_k     ``policy_update.logits(…)``, the policy's logits
    γ       ``gamma``
    λ       ``sticky_rate``
"""

from __future__ import annotations

import io
import math
import pathlib
import time
import uuid
import warnings
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.save_util import load_from_pkl
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback, Schedule

from staq import arguments
from staq.actions import BoundaryActions, Factors
from staq.backpropagation import Backpropagation, backpropagation
from staq.behaviour import Behaviour, BehaviourName
from staq.mirror_descent import StepSize, annealed, kl_divergence
from staq.policies import CnnPolicy, MlpPolicy, StaQPolicy
from staq.q_networks import Architecture
from staq.replay import PIECE, Replay
from staq.soft_bellman import (
    TargetReduce,
    ensemble_value,
    entropy,
    half_mse,
    soft_target,
    soft_value,
    soft_value_of_sample,
)
from staq.updates import PolicyUpdate


class PolicyMirrorDescent(OffPolicyAlgorithm):
    """Entropy-regularised policy mirror descent, but for the policy update.

    Defaults are the paper's for classic control (its Table 2). Subclasses add keyword arguments of their own;
    ``inspect.signature`` and ``help`` show all of them together.

    :param policy: "MlpPolicy", "CnnPolicy" or a policy class
    :param env: an environment, a vectorised one, or the name of one; 50 environments in parallel make acting cheap
    :param learning_rate: Adam's, a number or an SB3 schedule
    :param buffer_size: transitions in the replay
    :param batch_size: transitions per gradient step
    :param gamma: discount factor
    :param kl_weight: η, weight of the KL divergence to the previous policy
    :param ent_weight_init: entropy weight at the start, scaled: the weight τ of the paper is this over ln|A|
    :param ent_weight_final: scaled entropy weight after ``ent_decay_steps``
    :param ent_decay_steps: environment steps over which the entropy weight is annealed linearly
    :param reward_scale: factor on rewards in the targets; returns are reported unscaled
    :param epsilon: probability of a uniform action while collecting
    :param behaviour: "softmax", or "sticky" to hold each action for about ``sticky_rate`` steps
    :param sticky_rate: λ, mean of the Poisson distribution of how long an action is held
    :param n_critics: Q-networks in the ensemble
    :param target_action: the next action in the target: "expected" over the policy, or one "sampled" per draw
    :param target_reduce: the ensemble's value in the target: "mean" or "min"
    :param policy_update_interval: environment steps per iteration; a multiple of the number of environments
    :param gradient_steps: per iteration; -1 is as many as environment steps
    :param target_update_interval: gradient steps between hard copies into the target networks
    :param n_atoms: choices per dimension of a continuous (Box) action space, evenly spaced between its bounds
    :param stats_window_size: episodes over which the logged return is averaged
    :param tensorboard_log: folder for TensorBoard, if any
    :param policy_kwargs: arguments of the policy: net_arch, conv_arch, activation_fn, features_extractor_class …
    :param verbose: 0 for silence, 1 for progress
    :param seed: of every generator; None for a random one
    :param device: "auto", "cpu" or "cuda"
    """

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {"MlpPolicy": MlpPolicy, "CnnPolicy": CnnPolicy}
    policy: StaQPolicy
    replay_buffer: Replay | None

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        arguments.merge_signature(cls)

    def __init__(
        self,
        policy: str | type[StaQPolicy],
        env: GymEnv | str | None,
        learning_rate: float | Schedule = 1e-4,
        buffer_size: int = 50_000,
        batch_size: int = 256,
        gamma: float = 0.99,
        kl_weight: float = 20.0,
        ent_weight_init: float = 2.0,
        ent_weight_final: float = 0.4,
        ent_decay_steps: int = 500_000,
        reward_scale: float = 10.0,
        epsilon: float = 0.05,
        behaviour: BehaviourName = "softmax",
        sticky_rate: float = 10.0,
        n_critics: int = 2,
        target_action: Literal["expected", "sampled"] = "expected",
        target_reduce: TargetReduce = "mean",
        policy_update_interval: int = 5000,
        gradient_steps: int = -1,
        target_update_interval: int = 200,
        n_atoms: int = 7,
        stats_window_size: int = 100,
        tensorboard_log: str | None = None,
        policy_kwargs: dict[str, Any] | None = None,
        verbose: int = 0,
        seed: int | None = None,
        device: torch.device | str = "auto",
        _init_setup_model: bool = True,
        **arguments_of_dqn: Any,
    ) -> None:
        arguments.ignore_with_a_warning(type(self), arguments_of_dqn)
        env = arguments.checked_env(env)
        super().__init__(
            policy,
            env,  # type: ignore[arg-type]  # None while loading, as everywhere in SB3
            learning_rate,
            buffer_size=buffer_size,
            learning_starts=0,
            batch_size=batch_size,
            gamma=gamma,
            gradient_steps=gradient_steps,
            policy_kwargs=policy_kwargs,
            stats_window_size=stats_window_size,
            tensorboard_log=tensorboard_log,
            verbose=verbose,
            device=device,
            support_multi_env=True,
            seed=seed,
            sde_support=False,
        )
        self.kl_weight = kl_weight
        self.ent_weight_init = ent_weight_init
        self.ent_weight_final = ent_weight_final
        self.ent_decay_steps = ent_decay_steps
        self.reward_scale = reward_scale
        self.epsilon = epsilon
        self.behaviour: BehaviourName = behaviour
        self.sticky_rate = sticky_rate
        self.n_critics = n_critics
        self.target_action = target_action
        self.target_reduce: TargetReduce = target_reduce
        self.policy_update_interval = policy_update_interval
        self.target_update_interval = target_update_interval
        self.n_atoms = n_atoms
        # Counted over all calls of learn(), which resets num_timesteps: annealing must not start anew.
        self.steps_collected = 0
        self.iteration = 0
        self.phase_seconds: dict[str, float] = {}
        self.policy_entropy: float | None = None
        self.run_id = uuid.uuid4().hex  # by which checkpoints know their run
        if _init_setup_model:
            self._setup_model()

    # ------------------------------------------------------------------ setting up

    def _setup_model(self) -> None:
        arguments.check(vars(self), self.n_envs_or_one)
        _keep_freed_memory()
        self._setup_lr_schedule()
        self.set_random_seed(self.seed)
        devices: dict[str, torch.device | str] = {
            "replay": self.device,
            "behaviour": self.device,
            "targets": self.device,
            "predict": "cpu",
        }
        self._generators = {
            name: torch.Generator(device).manual_seed(seed)
            for (name, device), seed in zip(devices.items(), _derived_seeds(self.seed, len(devices)), strict=True)
        }
        self.policy = self.policy_class(  # type: ignore[assignment]
            self.observation_space,
            self.action_space,
            self.lr_schedule,
            make_update=self._make_update(),
            n_critics=self.n_critics,
            n_atoms=self.n_atoms,
            **self.policy_kwargs,
        ).to(self.device)
        self.policy.sampling = self._generators["predict"]
        self.replay_buffer = Replay(
            self.buffer_size,
            self.observation_space,
            self.action_space,
            self.factors,
            self._generators["replay"],
            self.n_envs,
            self.policy.architecture.kept,
        )
        self._behaviour = Behaviour(
            self.behaviour,
            self.n_envs_or_one,
            self.epsilon,
            self.sticky_rate,
            self._generators["behaviour"],
            self.factors,
        )
        if not hasattr(self, "_step_size"):  # a loaded model is in the iteration that it was saved in
            self._begin_iteration()

    @abstractmethod
    def _make_update(self) -> Callable[[Architecture, int], PolicyUpdate]:
        """Builds the policy update for an architecture and a number of critics."""

    @property
    def n_envs_or_one(self) -> int:
        return getattr(self, "n_envs", 1)  # a model loaded without an environment has none

    @property
    def factors(self) -> Factors:
        """The parts that an action consists of: a single one for Discrete actions."""
        return self.policy.coding.factors

    @property
    def step_size(self) -> StepSize:
        """τ_k and η of the current iteration."""
        return self._step_size

    @property
    def replay(self) -> Replay:
        assert self.replay_buffer is not None
        return self.replay_buffer

    @property
    def at_boundary(self) -> bool:
        """Whether the last iteration was finished and the next one not begun."""
        return self._steps_in_iteration == 0

    def restore_statistics(self, episodes: list[dict[str, float]], successes: list[float]) -> None:
        """Takes over the windows from which the mean return and the success rate are logged."""
        self.ep_info_buffer = deque(episodes, maxlen=self._stats_window_size)
        self.ep_success_buffer = deque(successes, maxlen=self._stats_window_size)

    def _begin_iteration(self) -> None:
        scaled = annealed(self.ent_weight_init, self.ent_weight_final, self.ent_decay_steps, self.steps_collected)
        self._step_size = StepSize(scaled / self.factors.log_count, self.kl_weight)
        self._steps_in_iteration = 0
        self.policy.policy_update.begin_iteration(self._step_size)

    # ------------------------------------------------------------------ the loop

    def learn(
        self,
        total_timesteps: int,
        callback: MaybeCallback = None,
        log_interval: int | None = 1,
        tb_log_name: str | None = None,
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> Self:
        """Runs whole iterations until ``total_timesteps`` environment steps are reached.

        :param log_interval: iterations between two lines of the log
        """
        if reset_num_timesteps or self._last_obs is None:  # the environments are about to be reset
            self._behaviour.end_episodes(torch.ones(self.n_envs, dtype=torch.bool, device=self.device))
        total_timesteps, callback = self._setup_learn(
            total_timesteps, callback, reset_num_timesteps, tb_log_name or type(self).__name__, progress_bar
        )
        self._check_finite(np.asarray(self._last_obs), np.zeros(self.n_envs))
        callback.on_training_start(locals(), globals())
        while self.num_timesteps < total_timesteps:
            if not self.collect(callback):
                break
            self.evaluate()
            self.improve()
            self.report(log_interval)
        if log_interval is not None and self.iteration % log_interval:
            self.dump_logs()  # the last iterations are not to be lost
        callback.on_training_end()
        return self

    def collect(self, callback: BaseCallback) -> bool:
        """Environment steps under π_k up to the end of the iteration; False if a callback asked to stop."""
        assert self.env is not None
        replay, update = self.replay, self.policy.policy_update
        callback.on_rollout_start()
        keep_going, continuing = True, torch.zeros(self.n_envs, dtype=torch.bool, device=self.device)
        with self._timed("collect"):
            while keep_going and self._steps_in_iteration < self.policy_update_interval:
                obs = self._tensor(self._last_obs)
                accumulated = update.accumulated(obs)
                # What was the next state is the state now, unless its episode has ended.
                replay.set_accumulated(replay.last_rows[continuing], accumulated[continuing])
                choices = self._behaviour.act(update.logits(accumulated)).cpu().numpy()
                new_obs, rewards, dones, infos = self.env.step(self.policy.coding.actions(choices))
                self._store(choices, new_obs, rewards, dones, infos)
                self._update_info_buffer(infos, dones)
                self._episode_num += int(dones.sum())
                continuing = torch.as_tensor(~dones, device=self.device)
                self._behaviour.end_episodes(~continuing)
                self.num_timesteps += self.env.num_envs
                self.steps_collected += self.env.num_envs
                self._steps_in_iteration += self.env.num_envs
                self._update_current_progress_remaining(self.num_timesteps, self._total_timesteps)
                callback.update_locals(locals())
                keep_going = callback.on_step()
            self._evaluate_pending()
        callback.on_rollout_end()
        return keep_going

    def evaluate(self) -> None:
        """Gradient steps towards Q of π_k (Eq. 13); between two hard copies all targets are known at once."""
        replay, target_net = self.replay, self.policy.q_net_target
        steps = self.policy_update_interval if self.gradient_steps < 0 else self.gradient_steps
        self._update_learning_rate(self._optimizers())
        critics = backpropagation(self.policy.q_net, self.batch_size)
        self._losses, one = torch.zeros(3, device=self.device), torch.ones((), device=self.device)
        for start in range(0, steps, self.target_update_interval):
            with self._timed("targets"):
                target_net.load_state_dict(self.policy.q_net.state_dict())
                batches = replay.draw(min(self.target_update_interval, steps - start), self.batch_size)
                targets = self._targets(batches)
                taken = taken_actions(replay.actions[batches], self.factors)
            with self._timed("gradient"):
                for rows, actions, target in zip(batches, taken, targets, strict=True):
                    kept = replay.kept.index_select(0, rows)
                    q = regress(critics, kept, actions, target, self.factors.single)
                    self.policy.optimizer.step()
                # Of the window's last batch, and summed on the device: nothing is read back between gradients.
                q_taken = (q * taken[-1]).sum(1) * self.batch_size  # [E, B]
                self._losses += torch.stack([half_mse(q_taken, targets[-1]), q_taken.abs().mean(), one])
        self._n_updates += steps

    def improve(self) -> None:
        """π_k → π_{k+1}, then the entropy weight of the next iteration."""
        with self._timed("improve"):
            before = self._replay_log_policy()
            self.policy.policy_update.improve(self.policy.q_net, self.replay, self.step_size)
            self.iteration += 1
            self._record_iteration()
            self._begin_iteration()
            for name, value in self.policy.policy_update.diagnostics().items():
                self.logger.record(f"staq/{name}", value)
            after = self._replay_log_policy()
        self.logger.record("staq/policy_kl", kl_divergence(after, before).mean().item())
        self.policy_entropy = entropy(after).mean().item()
        self.logger.record("staq/policy_entropy", self.policy_entropy)

    def report(self, log_interval: int | None) -> None:
        """One line of the log, under SB3's tags and ``staq/``."""
        for phase, seconds in self.phase_seconds.items():
            self.logger.record(f"time/{phase}_seconds", seconds)
        self.phase_seconds = {}
        if log_interval is not None and self.iteration % log_interval == 0:
            self.dump_logs()

    # ------------------------------------------------------------------ the parts of the loop

    @torch.no_grad()
    def _targets(self, batches: torch.Tensor) -> torch.Tensor:
        """Soft Bellman targets, each distinct transition evaluated once. [steps, B] → [steps, B]"""
        replay = self.replay
        rows, draw = batches.unique(return_inverse=True)
        q = self._next_q(rows)
        log_pi = self._log_policy(replay.accumulated[rows]).float()
        if self.target_action == "expected":
            value = self._one_value(soft_value(q, log_pi, self.step_size.entropy_weight))[draw]
        else:
            each = draw.flatten()
            value = self.factors.total(self._sampled_value, q[..., each, :], log_pi[each])
            value = self._one_value(value).view_as(draw)
        return soft_target(replay.rewards[batches], replay.terminated[batches], value, self.gamma, self.reward_scale)

    def _evaluate_pending(self) -> None:
        """The logits of next states that nobody acted on: an episode's last one, and those after the last step."""
        pending = self.replay.pending_rows()
        if len(pending):
            obs = self.replay.next_observations[pending]
            self.replay.set_accumulated(pending, self.policy.policy_update.accumulated(obs))

    def _sampled_value(self, q: torch.Tensor, log_pi: torch.Tensor) -> torch.Tensor:
        return soft_value_of_sample(q, log_pi, self.step_size.entropy_weight, self._generators["targets"])

    @property
    def _reduces_values(self) -> bool:
        """Whether the ensemble is reduced to one only when each member has said what the next state is worth.

        A minimum over the parts' q would count every difference in how members divide a sum as disagreement.
        """
        return self.target_reduce == "min" and not self.factors.single

    def _one_value(self, values: torch.Tensor) -> torch.Tensor:
        """[n], or [E, n] → [n]"""
        return ensemble_value(values, self.target_reduce) if self._reduces_values else values

    def _next_q(self, rows: torch.Tensor) -> torch.Tensor:
        """The target networks' q for the next states of replayed transitions. [n] → [n, A], or of each [E, n, A]"""
        networks, pieces = backpropagation(self.policy.q_net_target, PIECE), rows.split(PIECE)
        if self._reduces_values:
            of_each = [networks.forward(self.replay.next_kept[_filled_up(piece)]) for piece in pieces]
            return torch.cat([q[..., : len(piece)].mT for q, piece in zip(of_each, pieces, strict=True)], dim=1)
        q = torch.empty(len(rows), self.factors.n_outputs, device=self.device)
        for piece, part in zip(pieces, q.split(PIECE), strict=True):
            values = networks.forward(self.replay.next_kept.index_select(0, _filled_up(piece)))
            part.copy_(ensemble_value(values, self.target_reduce)[:, : len(piece)].t())
        return q

    def _tensor(self, observation: Any) -> torch.Tensor:
        obs, _ = self.policy.obs_to_tensor(observation)
        assert isinstance(obs, torch.Tensor)
        return obs

    def _log_policy(self, accumulated: torch.Tensor) -> torch.Tensor:
        return self.factors.log_softmax(self.policy.policy_update.logits(accumulated))

    def _optimizers(self) -> list[torch.optim.Optimizer]:
        of_update = self.policy.policy_update.optimizer
        return [self.policy.optimizer] if of_update is None else [self.policy.optimizer, of_update]

    def _replay_log_policy(self) -> torch.Tensor:
        return self._log_policy(self.replay.accumulated[: self.replay.size()])

    def _store(
        self, actions: np.ndarray, new_obs: Any, rewards: np.ndarray, dones: np.ndarray, infos: list[dict[str, Any]]
    ) -> None:
        """As the policy saw it; a vectorised environment hands the last state of an episode over in its info."""
        next_obs = np.array(new_obs)
        for i in np.flatnonzero(dones):
            if infos[i].get("terminal_observation") is not None:
                next_obs[i] = infos[i]["terminal_observation"]
        self._check_finite(next_obs, rewards)
        self._check_finite(new_obs, rewards)  # where an episode has ended, the first observation of the next one
        self.replay.add(self._last_obs, next_obs, actions, rewards, dones, infos)
        self._last_obs = new_obs

    def _check_finite(self, next_obs: np.ndarray, rewards: np.ndarray) -> None:
        for what, values in (("a reward", rewards), ("an observation", next_obs)):
            if np.issubdtype(values.dtype, np.floating) and not np.isfinite(values).all():
                index = int(np.argwhere(~np.isfinite(values))[0][0])
                raise FloatingPointError(
                    f"Environment {index} returned {what} that is not finite at step {self.num_timesteps} "
                    f"({np.asarray(values[index]).tolist()}). Training stopped before it was stored: checkpoints are "
                    "intact. Mend or clip the environment's output."
                )

    def _record_iteration(self) -> None:
        loss, mean_abs_q, windows = self._losses.tolist()
        loss, mean_abs_q = loss / max(windows, 1), mean_abs_q / max(windows, 1)
        self.logger.record("train/loss", loss)
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        self.logger.record("time/iterations", self.iteration, exclude="tensorboard")
        self.logger.record("staq/bellman_error", math.sqrt(2.0 * loss / self.n_critics))
        self.logger.record("staq/mean_abs_q", mean_abs_q)
        self.logger.record("staq/entropy_weight", self.step_size.entropy_weight)
        self.logger.record("staq/alpha", self.step_size.alpha)
        self.logger.record("staq/beta", self.step_size.beta)

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.phase_seconds[phase] = self.phase_seconds.get(phase, 0.0) + time.perf_counter() - start

    # ------------------------------------------------------------------ using the policy

    def logits(self, observation: np.ndarray) -> np.ndarray:
        """ξ(s), the logits of the policy. → [B, A], or [A] for a single observation"""
        return self._evaluated(observation, self.policy.logits)

    def action_probabilities(self, observation: np.ndarray) -> np.ndarray:
        """π(·|s) = softmax(ξ(s)), part after part. → [B, A], or [A] for a single observation"""
        return self.policy.action_probabilities(observation)

    def q_values(self, observation: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """q of the networks that are learning, [B, E, A], and of each frozen one, oldest first, [B, n, E, A].

        For a single observation without the first axis.
        """
        frozen = self.policy.policy_update.frozen_q_values
        return (
            self._evaluated(observation, lambda obs: self.policy.q_net(obs).movedim(-1, 0)),
            self._evaluated(observation, lambda obs: frozen(obs).movedim(-1, 0)),
        )

    @torch.no_grad()
    def _evaluated(self, observation: np.ndarray, function: Any) -> np.ndarray:
        vectorized = self.policy.is_vectorized_observation(observation)
        values: np.ndarray = function(self._tensor(observation)).cpu().numpy()
        return values if vectorized else values[0]

    def export(self, path: str | pathlib.Path) -> pathlib.Path:
        """Writes the policy into the folder ``path`` as safetensors and JSON, for ``staq.load_policy``."""
        from staq.export import export_policy

        if self._vec_normalize_env is not None:
            warnings.warn(
                "The exported policy expects observations normalised by this VecNormalize: export its statistics too, "
                "with vec_env.save(path).",
                stacklevel=2,
            )
        spec = self.env.get_attr("spec")[0] if self.env is not None and self.env.has_attr("spec") else None
        return export_policy(
            self.policy,
            path,
            environment=None if spec is None else spec.id,
            boundary_actions=spec is not None
            and any(w.name == BoundaryActions.__name__ for w in spec.additional_wrappers),
        )

    # ------------------------------------------------------------------ stable-baselines3's files and environments

    def set_env(self, env: GymEnv, force_reset: bool = True) -> None:
        checked = arguments.checked_env(env)
        assert checked is not None
        super().set_env(checked, force_reset)

    def load_replay_buffer(self, path: str | pathlib.Path | io.BufferedIOBase, truncate_last_traj: bool = True) -> None:
        """As in SB3; the logits are computed anew, since the policy may have moved on since it was saved."""
        replay = load_from_pkl(path, self.verbose)
        if not isinstance(replay, Replay):
            raise ValueError(
                f"{path} holds a {type(replay).__name__}, not a replay of {type(self).__name__}: save one with "
                "save_replay_buffer."
            )
        replay.adopt(self._generators["replay"], self.n_envs, self.policy.architecture.kept)
        self.replay_buffer = replay
        self._recompute_logits()

    def set_parameters(
        self, load_path_or_dict: Any, exact_match: bool = True, device: torch.device | str = "auto"
    ) -> None:
        super().set_parameters(load_path_or_dict, exact_match, device)
        self._recompute_logits()

    @classmethod
    def load(cls, *arguments: Any, **keywords: Any) -> Self:
        """As in SB3."""
        model = super().load(*arguments, **keywords)
        model.policy.policy_update.begin_iteration(model.step_size)
        # What the iteration that it was saved in had collected is not in the file: it begins again.
        model.steps_collected -= model._steps_in_iteration
        model._steps_in_iteration = 0
        return model

    def _recompute_logits(self) -> None:
        for rows in self.replay.filled_rows():
            obs = self.replay.next_observations[rows]
            self.replay.accumulated[rows] = self.policy.policy_update.accumulated(obs)

    def _get_torch_save_params(self) -> tuple[list[str], list[str]]:
        names = ["policy", "policy.optimizer", "policy.policy_update.optimizer"]
        return names[: 1 + len(self._optimizers())], []

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "_generators", "_behaviour", "_losses"]


def taken_actions(choices: torch.Tensor, factors: Factors) -> torch.Tensor:
    """1/B where an action was taken, else 0: what turns q − target into the gradient. [..., B(, D)] → [..., A, B]"""
    batches = choices.shape if factors.single else choices.shape[:-1]
    taken = torch.zeros((*batches[:-1], factors.n_outputs, batches[-1]), device=choices.device)
    return taken.scatter_(-2, factors.outputs_of(choices), 1.0 / batches[-1])


def regress(
    critics: Backpropagation, kept: torch.Tensor, taken: torch.Tensor, target: torch.Tensor, single: bool = True
) -> torch.Tensor:
    """The gradient of ``half_mse`` (Eq. 13), and q of all choices. [B, ...], [A, B], [B] → [E, A, B]

    :param single: whether actions have a single part; otherwise their q is the sum over the choices taken
    """
    q = critics.forward(kept)
    if single:
        critics.backward((q - target).mul_(taken))
    else:
        q_taken = (q * taken).sum(1, keepdim=True) * len(target)  # [E, 1, B]
        critics.backward((q_taken - target) * taken)
    return q


def _derived_seeds(seed: int | None, n: int) -> list[int]:
    """Independent seeds, one per component, from the one seed (or from the system's entropy)."""
    return [int(child.generate_state(1, np.uint64)[0] >> 1) for child in np.random.SeedSequence(seed).spawn(n)]


def _keep_freed_memory() -> None:
    """Lets the C library keep blocks of up to 31 MB that are freed and soon needed again.

    glibc starts by handing every large block back to the system, and clearing fresh pages for the activations of
    each forward pass costs more than computing them; freeing one large block raises the size up to which it does
    not. Elsewhere this does nothing.
    """
    torch.empty(31 << 20, dtype=torch.uint8)


def _filled_up(piece: torch.Tensor) -> torch.Tensor:
    """A piece that is not full is filled up with any rows, whose q is not used. [n] → [PIECE]"""
    return torch.nn.functional.pad(piece, (0, PIECE - len(piece)))
