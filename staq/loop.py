"""Start here: the loop that every algorithm shares, entropy-regularised policy iteration (Alg. 1 of the paper).

    collect    ``policy_update_interval`` environment steps with a behaviour built on π_k      → experience
    evaluate   experience → q_k                                 the first place that varies, ``staq.policy_evaluation``
    improve    q_k and what is kept of the past → π_{k+1}      the second place that varies, ``staq.policy_improvement``

Both are values handed to the loop, neither knows the other, and every pair works. An algorithm (``staq.algorithms``) is
this loop with an improvement; ``evaluation=`` names the other.

    paper   here
    τ_k     ``step_size.entropy_weight``, annealed from ``ent_weight_init`` to ``ent_weight_final``, over ln|A|
    η       ``kl_weight``
    α, β    ``step_size.alpha``, ``step_size.beta``
    c_k     ``policy.improvement.accumulated(…)``, the costly part of the logits
    ξ_k     ``policy.logits_of(…)``, the policy's logits
    γ       ``gamma``
    λ       ``sticky_rate``
"""

from __future__ import annotations

import logging
import math
import uuid
from functools import partial
from typing import Any, ClassVar, Self

import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback, Schedule
from stable_baselines3.common.utils import update_learning_rate

from staq import registry
from staq.actions import Factors
from staq.envs.masks import MaskReader, reader_for
from staq.envs.supported import supported_env
from staq.experience.behaviour import Behaviour
from staq.experience.transitions import check_finite, next_observations
from staq.hyperparameters import (
    SEED,
    STEPS,
    Group,
    Shared,
    check,
    check_device,
    defaults_of,
    described,
    other_defaults,
    resolved,
)
from staq.networks.allocation import keep_freed_memory
from staq.phases import Phases
from staq.policies import CnnPolicy, MlpPolicy, MultiInputPolicy, StaQPolicy, check_arguments, one_of_policies
from staq.policy_evaluation.evaluation import PolicyEvaluation, TrainingProgress
from staq.policy_evaluation.soft_bellman import entropy
from staq.policy_improvement.improvement import PolicyImprovement
from staq.policy_improvement.mirror_descent import StepSize, annealed, kl_divergence
from staq.sb3_interface import SB3Interface
from staq.seeding import derived_generators

log = logging.getLogger("staq")
"""What a user should know and has not done wrong: a line on standard error, whatever ``verbose`` is."""


LARGEST_Q = 1e9
"""Beyond it float32 tells no two actions apart that differ by less than 64: nothing more will be learned."""


class PolicyMirrorDescent(SB3Interface):
    """Entropy-regularised policy mirror descent, but for the policy improvement.

    Called as any algorithm of stable-baselines3 is. Hyperparameters are keyword arguments and become attributes.

    :param policy: "MlpPolicy", "CnnPolicy", "MultiInputPolicy" (for Dict observations) or a policy class
    :param env: an environment, a vectorised one, or the name of one; 50 environments in parallel make acting cheap
    :param evaluation: how q_k is learned: "replay" is the paper's; "lambda" learns from on-policy λ-returns, many times
        faster, with defaults of its own
    :param stats_window_size: episodes over which the logged return is averaged
    :param tensorboard_log: folder for TensorBoard, if any
    :param policy_kwargs: arguments of the policy: net_arch, conv_arch, activation_fn, features_extractor_class …
    :param verbose: 0 for silence, 1 for progress
    :param seed: of every generator; None for a random one
    :param device: "auto", "cpu" or "cuda"
    """

    improvement: ClassVar[type[PolicyImprovement]]
    """What makes an algorithm this one."""
    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {
        "MlpPolicy": MlpPolicy,
        "CnnPolicy": CnnPolicy,
        "MultiInputPolicy": MultiInputPolicy,
    }
    policy: StaQPolicy
    policy_update_interval: int
    reward_scale: float
    _advised = _said = False
    _masks: MaskReader | None = None

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        cls.__doc__ = f"{cls.__doc__}\n\n    {described(cls.groups())}\n    "

    def __init__(
        self,
        policy: str | type[StaQPolicy],
        env: GymEnv | str | None,
        learning_rate: float | Schedule | None = None,
        buffer_size: int | None = None,
        batch_size: int | None = None,
        gamma: float | None = None,
        *,
        evaluation: str = "replay",
        stats_window_size: int = 100,
        tensorboard_log: str | None = None,
        policy_kwargs: dict[str, Any] | None = None,
        verbose: int = 0,
        seed: int | None = None,
        device: torch.device | str = "auto",
        _init_setup_model: bool = True,
        **hyperparameters: Any,
    ) -> None:
        # The first four may be given by position, as in SB3.
        first = {"learning_rate": learning_rate, "buffer_size": buffer_size, "batch_size": batch_size, "gamma": gamma}
        given = {name: value for name, value in first.items() if value is not None} | hyperparameters
        check_device(device)
        check("policy", policy, one_of_policies(self.policy_aliases))
        check("seed", seed, SEED)
        check_arguments(policy if isinstance(policy, type) else self.policy_aliases[policy], policy_kwargs)
        if env is None and _init_setup_model:  # as it is while loading
            raise ValueError('env=None: name an environment, such as "CartPole-v1", or make one.')
        evaluated = registry.load_evaluation(evaluation)
        n_envs = getattr(env, "num_envs", 1)
        known = defaults_of(self.groups(evaluation), evaluated.defaults_with(n_envs, given))
        values = resolved(type(self).__name__, known, given, registry.settings_elsewhere(evaluation))
        super().__init__(
            policy,
            supported_env(env),  # type: ignore[arg-type]  # None while loading, as everywhere in SB3
            values["learning_rate"],
            learning_starts=0,
            policy_kwargs=policy_kwargs,
            stats_window_size=stats_window_size,
            tensorboard_log=tensorboard_log,
            verbose=verbose,
            device=device,
            support_multi_env=True,
            seed=seed,
            sde_support=False,
        )
        self.evaluation = evaluation
        if verbose >= 1 and evaluated.defaults:
            of_policy = {**evaluated.policy_defaults, **(policy_kwargs or {})}
            print(other_defaults(evaluation, {n: v for n, v in {**values, **of_policy}.items() if n not in given}))
        for name, value in values.items():
            setattr(self, name, value)
        # Counted over all calls of learn(), which resets num_timesteps: annealing must not start anew.
        self.steps_collected = 0
        self.iteration = 0
        self.policy_entropy: float | None = None
        self.run_id = uuid.uuid4().hex  # by which checkpoints know their run
        if _init_setup_model:
            self._setup_model()

    @classmethod
    def groups(cls, evaluation: str = "replay") -> list[type[Group]]:
        """The groups whose fields are this algorithm's hyperparameters."""
        return [Shared, registry.load_evaluation(evaluation).Settings, cls.improvement.Settings]

    @property
    def shared(self) -> Shared:
        """The loop's own hyperparameters, as they are now."""
        return Shared.of(self)

    @property
    def evaluation_settings(self) -> Any:
        """Those of the policy evaluation."""
        return self.policy_evaluation.Settings.of(self)

    # ------------------------------------------------------------------ the loop

    def learn(
        self,
        total_timesteps: int,
        callback: MaybeCallback = None,
        log_interval: int | None = 1,
        tb_log_name: str | None = None,
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
        whole_iterations: bool = False,
    ) -> Self:
        """Run iterations for ``total_timesteps`` environment steps; the next call goes on where the last one has ended.

        :param log_interval: iterations between two lines of the log
        :param whole_iterations: finish the last iteration, rather than stop in the middle of it
        """
        check("total_timesteps", total_timesteps, STEPS)
        if reset_num_timesteps or self._last_obs is None:  # the environments are about to be reset
            self._behaviour.end_episodes(torch.ones(self.n_envs, dtype=torch.bool, device=self.device))
            self.experience.end_episodes()
        total_timesteps, callback = self._setup_learn(
            total_timesteps, callback, reset_num_timesteps, tb_log_name or type(self).__name__, progress_bar
        )
        for advice in self._advice():
            log.warning(advice)
        self._find_masks()
        check_finite("an observation", self._last_obs, self.num_timesteps)
        callback.on_training_start(locals(), globals())
        began, last_step = self.iteration, math.inf if whole_iterations else total_timesteps
        while self.num_timesteps < total_timesteps:
            if not self.collect(callback, last_step):
                break
            self.evaluate()
            self.improve()
            self.report(log_interval)
        if log_interval is not None and (self.iteration % log_interval or not self.at_boundary):
            self.dump_logs()  # the last iterations are not to be lost, nor the steps of one that was begun
        callback.on_training_end()
        if self.iteration == began:
            self._say_that_nothing_was_learned()
        return self

    def collect(self, callback: BaseCallback, last_step: float = math.inf) -> bool:
        """Environment steps under π_k; False if a callback or the last step came before the end of the iteration."""
        interval, keep_going = self.shared.policy_update_interval, True
        callback.on_rollout_start()
        with self.phases("collect"):
            while keep_going and self._steps_in_iteration < interval and self.num_timesteps < last_step:
                keep_going = self._step(callback)
            # In the middle of an iteration the next step evaluates what it acts on, as if there had been no stop.
            if ended := self._steps_in_iteration >= interval:
                self.experience.complete(self.policy.improvement.accumulated)
        callback.on_rollout_end()
        return keep_going and ended

    def evaluate(self) -> None:
        """Experience under π_k → q_k."""
        evaluation, settings = self.policy_evaluation, self.evaluation_settings
        self._update_learning_rate(self._optimizers())
        found = evaluation.evaluate(self.experience, self.shared, settings, self.step_size)
        if not math.isfinite(found.loss) or found.mean_abs_q > LARGEST_Q:
            raise self._diverged(f"the critics' loss is {found.loss:g}, their mean |q| {found.mean_abs_q:g}")
        self._n_updates += found.gradient_steps
        self.logger.record("train/loss", found.loss)
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        self.logger.record("staq/bellman_error", math.sqrt(2.0 * found.loss / self.shared.n_critics))
        self.logger.record("staq/mean_abs_q", found.mean_abs_q)

    def improve(self) -> None:
        """q_k and π_k → π_{k+1}, then the entropy weight of the next iteration."""
        improvement, experience = self.policy.improvement, self.experience
        improves = (self.iteration + 1) % self.policy_evaluation.rollouts(self.evaluation_settings) == 0
        with self.phases("improve"):
            before = self.policy.log_policy(experience.current_accumulated(), experience.current_masks())
            if improves:
                improvement.settings = improvement.Settings.of(self)
                states = experience.states(self.policy, self.shared.batch_size)
                change = improvement.improve(self.policy.q_net, states, self.step_size)
                experience.follow(change, improvement.accumulated)
            self._record_step_size()
            self.iteration += 1
            self._begin_iteration()
            after = self.policy.log_policy(experience.current_accumulated(), experience.current_masks())
        self.policy_entropy, policy_kl = entropy(after).mean().item(), kl_divergence(after, before).mean().item()
        if not math.isfinite(self.policy_entropy):
            raise self._diverged("the improved policy's logits are no numbers")
        if improves:
            improvement.moved(policy_kl)
        moved = {"policy_kl": policy_kl, "policy_entropy": self.policy_entropy}
        for name, value in (improvement.diagnostics() | moved).items():
            self.logger.record(f"staq/{name}", value)

    def report(self, log_interval: int | None) -> None:
        """One line of the log, under SB3's tags and ``staq/``."""
        self.logger.record("time/iterations", self.iteration, exclude="tensorboard")
        for phase, seconds in self.phases.take().items():
            self.logger.record(f"time/{phase}_seconds", seconds)
        if log_interval is not None and self.iteration % log_interval == 0:
            self.dump_logs()

    # ------------------------------------------------------------------ parts of the loop

    def _advice(self) -> list[str]:
        """What would make training better or faster, said once."""
        advised, self._advised = self._advised, True
        return [] if advised or self.policy_evaluation.advice is None else [self.policy_evaluation.advice]

    def _say_that_nothing_was_learned(self) -> None:
        """Once: who goes on step by step knows by then."""
        if self.at_boundary or self._said:
            return
        self._said = True
        log.warning(
            f"Nothing was learned: learn() ended after {self._steps_in_iteration} of the "
            f"{self.policy_update_interval} environment steps of an iteration (policy_update_interval). The next "
            "learn() goes on in it; with reset_num_timesteps=False exactly. For trainings so short choose a smaller "
            "one, such as policy_update_interval=100."
        )

    def _diverged(self, how: str) -> FloatingPointError:
        rate = self.policy.optimizer.param_groups[0]["lr"]
        return FloatingPointError(
            f"Training diverged in iteration {self.iteration + 1}, after {self.num_timesteps} steps: {how}. What was "
            f"saved before is intact. Lower learning_rate ({rate:g}) or reward_scale "
            f"({self.reward_scale:g}), or scale the environment's observations and rewards."
        )

    def _step(self, callback: BaseCallback) -> bool:
        """Act in every environment once; False if a callback asked to stop."""
        assert self.env is not None
        obs, _ = self.policy.obs_to_tensor(self._last_obs)  # type: ignore[arg-type]
        accumulated = self.experience.see(obs, self.policy.improvement)
        logits = self.policy.improvement.logits(accumulated)
        if not math.isfinite(logits.sum()):
            raise self._diverged("the policy's logits are no numbers")
        indices = self._behaviour.act(logits, None if self._masks is None else self._masks.now).cpu().numpy()
        new_obs: Any
        new_obs, rewards, dones, infos = self.env.step(self.policy.codec.actions(indices))
        next_obs = next_observations(new_obs, dones, infos)
        # Of new_obs too: where an episode has ended it is the first observation of the next one.
        for what, values in (("a reward", rewards), ("an observation", next_obs), ("an observation", new_obs)):
            check_finite(what, values, self.num_timesteps)
        masks = None if self._masks is None else self._masks.follow(dones, infos, self.num_timesteps)
        stored = self.policy.stored
        self.experience.add(
            stored(self._last_obs), stored(next_obs), indices, rewards, dones, infos, self._behaviour.fresh, masks
        )
        self._last_obs = new_obs
        self._update_info_buffer(infos, dones)
        self._episode_num += int(dones.sum())
        self._behaviour.end_episodes(torch.as_tensor(dones, device=self.device))
        self.num_timesteps += self.env.num_envs
        self.steps_collected += self.env.num_envs
        self._steps_in_iteration += self.env.num_envs
        self._update_current_progress_remaining(self.num_timesteps, self._total_timesteps)
        callback.update_locals(locals())
        return callback.on_step()

    def _find_masks(self) -> None:
        """Reads the masks of the states that a call of ``learn`` begins in, if there are any."""
        assert self.env is not None
        self._masks = reader_for(self.env, self.shared.masks, self.factors, self.device)
        self.policy.masked = self._masks is not None
        if self._masks is not None:
            self._masks.begin(self.num_timesteps)
        if self.verbose >= 1:
            print("Actions are masked, by the environments' action_masks()." if self._masks else "No action masks.")

    def _update_learning_rate(self, optimizers: Any) -> None:
        """SB3's, times what the policy evaluation wants of it: as it was when the iteration began."""
        began = self.num_timesteps - self._steps_in_iteration
        remaining = min(1.0, max(0.0, 1.0 - began / self._total_timesteps))  # it may have begun in an earlier call
        progress = TrainingProgress(self.steps_collected - self._steps_in_iteration, remaining)
        factor = self.policy_evaluation.learning_rate_factor(self.shared, self.evaluation_settings, progress)
        rate = factor * self.lr_schedule(self._current_progress_remaining)
        self.logger.record("train/learning_rate", rate)
        for optimizer in optimizers:
            update_learning_rate(optimizer, rate)

    def _record_step_size(self) -> None:
        for name in ("entropy_weight", "alpha", "beta"):
            self.logger.record(f"staq/{name}", getattr(self.step_size, name))

    def _begin_iteration(self) -> None:
        own = self.shared
        scaled = annealed(own.ent_weight_init, own.ent_weight_final, own.ent_decay_steps, self.steps_collected)
        self._step_size = StepSize(scaled / self.factors.log_count, own.kl_weight)
        self._steps_in_iteration = 0
        self.policy.improvement.begin_iteration(self._step_size)

    # ------------------------------------------------------------------ setting up

    def _setup_model(self) -> None:
        n_envs = self.n_envs_or_one
        self.shared.check_together(n_envs)
        evaluation_class = registry.load_evaluation(self.evaluation)
        own = evaluation_class.Settings.of(self), self.improvement.Settings.of(self)
        keep_freed_memory()
        self._setup_lr_schedule()
        self.set_random_seed(self.seed)
        devices: dict[str, Any] = {
            "replay": self.device,
            "behaviour": self.device,
            "targets": self.device,
            "predict": "cpu",
        }
        self._generators = derived_generators(self.seed, devices)
        self.policy = self.policy_class(  # type: ignore[assignment]
            self.observation_space,
            self.action_space,
            self.lr_schedule,
            make_improvement=partial(self.improvement, settings=own[1]),
            n_critics=self.shared.n_critics,
            n_atoms=self.shared.n_atoms,
            **{**evaluation_class.policy_defaults, **self.policy_kwargs},
        ).to(self.device)
        self.policy.sampling = self._generators["predict"]
        self.phases = Phases()
        self.policy_evaluation: PolicyEvaluation = evaluation_class(self.policy, n_envs, self._generators, self.phases)
        shared = self.shared
        self.experience = self.policy_evaluation.make_experience(shared, own[0])
        self._behaviour = Behaviour(
            shared.behaviour, n_envs, shared.epsilon, shared.sticky_rate, self._generators["behaviour"], self.factors
        )
        if not hasattr(self, "_step_size"):  # a loaded model is in the iteration that it was saved in
            self._begin_iteration()

    @property
    def n_envs_or_one(self) -> int:
        return getattr(self, "n_envs", 1)  # a model loaded without an environment has none

    @property
    def factors(self) -> Factors:
        """The parts that an action consists of: a single one for Discrete actions."""
        return self.policy.codec.factors

    @property
    def step_size(self) -> StepSize:
        """τ_k and η of the current iteration."""
        return self._step_size

    @property
    def at_boundary(self) -> bool:
        """Whether the last iteration was finished and the next one not begun."""
        return self._steps_in_iteration == 0
