"""Policy evaluation without a replay: regression on one rollout, towards soft λ-returns (after PQN, arXiv:2407.04811).

The paper's conclusion names such evaluations as what StaQ is a test bed for. Normalised networks (``norm="layer"``)
make them work without target networks; on-policy targets then cost next to nothing, since π_k of every visited state
is known from acting.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch

from staq.actions import Factors
from staq.actions.masks import are_complete, log_count
from staq.experience.rollout import Rollout
from staq.experience.transitions import at
from staq.hyperparameters import FRACTION, POSITIVE, Group, Shared, at_least, setting
from staq.networks.gradients import backpropagation, differentiate
from staq.networks.optimizer import clipped_step
from staq.policy_evaluation.evaluation import (
    Evaluated,
    PolicyEvaluation,
    TrainingProgress,
    known_only,
    taken_actions,
)
from staq.policy_evaluation.soft_bellman import entropy, half_mse, lambda_returns, soft_value
from staq.policy_improvement.mirror_descent import StepSize

ROLLOUT = 2048
"""Environment steps per iteration, where nothing else is said."""
EPOCHS_ALONE = 12
"""Passes over a rollout of a single environment, whose steps are slow: each is used more often."""


class LambdaReturns(PolicyEvaluation):
    """Passes over one rollout, towards the soft λ-returns of π_k that start from the iteration's first q."""

    @dataclass(frozen=True)
    class Settings(Group):
        """How far targets look, and how often a rollout is used."""

        trace_decay: float = setting(0.95, "λ: 0 looks one step ahead, 1 to the end of the rollout", FRACTION)
        n_epochs: int = setting(4, "passes over a rollout", at_least(1))
        max_grad_norm: float = setting(10.0, "norm to which a gradient is clipped", POSITIVE)
        lr_decay_steps: int | None = setting(
            None,
            "environment steps over which the learning rate falls linearly to 0; None is the whole run",
            at_least(1, or_none="for the whole run"),
        )
        rollouts_per_update: int = setting(1, "rollouts under one policy before it is improved", at_least(1))

    defaults: ClassVar[Mapping[str, Any]] = {
        "learning_rate": 1e-3,
        "batch_size": 128,
        "n_critics": 1,
        "policy_update_interval": ROLLOUT,
        "reward_scale": 1.0,
        "kl_weight": 0.2,
        "ent_weight_init": 0.5,
        "ent_weight_final": 0.1,
        "memory_size": 1,
        "actor_steps": None,
        "max_states": 1024,
    }
    policy_defaults: ClassVar[Mapping[str, Any]] = {"norm": "layer", "optimizer_class": "RAdam"}
    seconds_per_checkpoint = 20.0
    _warned = False

    @classmethod
    def defaults_with(cls, n_envs: int, given: Mapping[str, Any]) -> dict[str, Any]:
        """A rollout of as many steps as the environments divide; more passes over that of a single one."""
        interval = max(1, round(ROLLOUT / n_envs)) * n_envs
        alone = {"n_epochs": EPOCHS_ALONE} if n_envs == 1 else {}
        return {**cls.defaults, "policy_update_interval": interval, **alone}

    @property
    def advice(self) -> str | None:
        if self.n_envs > 1:
            return None
        return (
            "With one environment every step waits for the networks; make_vec_env(env, n_envs=64) asks them once for "
            "64 steps, which is several times faster, and its rollouts show more of the environment."
        )

    def make_experience(self, shared: Shared, settings: Settings) -> Rollout:
        if shared.batch_size > shared.policy_update_interval:
            raise ValueError(
                f"batch_size={shared.batch_size} is more than the policy_update_interval="
                f"{shared.policy_update_interval} steps of a rollout: lower the one or raise the other."
            )
        n_steps = shared.policy_update_interval // self.n_envs
        return Rollout(n_steps, self.n_envs, self.policy.architecture, settings.n_epochs, self.generators["replay"])

    def learning_rate_factor(self, shared: Shared, settings: Settings, progress: TrainingProgress) -> float:
        """Linear to 0; a schedule of the user's own stays as it is, unless ``lr_decay_steps`` is given too."""
        if settings.lr_decay_steps is not None:
            left = max(0.0, 1.0 - progress.steps_collected / settings.lr_decay_steps)
            if left == 0.0 and not self._warned:
                self._warned = True
                warnings.warn(
                    f"After lr_decay_steps={settings.lr_decay_steps} the learning rate is 0 and nothing is learned any "
                    "more: raise it.",
                    stacklevel=2,
                )
            return left
        return 1.0 if callable(shared.learning_rate) else progress.remaining

    def rollouts(self, settings: Settings) -> int:
        return settings.rollouts_per_update

    def evaluate(self, experience: Rollout, shared: Shared, settings: Settings, step_size: StepSize) -> Evaluated:
        policy, rollout = self.policy, experience
        rollout.n_epochs = settings.n_epochs
        with self.phases("targets"):
            targets = self.targets(rollout, shared, settings, step_size).flatten()
            obs, actions = rollout.flat("observations"), rollout.flat("actions")
            batches = rollout.minibatches(settings.n_epochs, shared.batch_size)
        rollout.used = True
        with self.phases("gradient"):
            critics, loss_of = backpropagation(policy.q_net, shared.batch_size), partial(self.loss, settings)
            taken = taken_actions(actions[batches], self.factors)  # [n, A, B]
            wanted, taken = known_only(targets[batches], taken, at(self.known_targets(rollout), batches))
            for rows, chosen, target in zip(batches, taken, wanted, strict=True):
                outputs = critics.forward(obs.index_select(0, rows))  # [E, A, B]
                q = (outputs * chosen).sum(1)  # of several parts it is the sum [E, B]
                loss, error = differentiate(loss_of, q, target)
                critics.backward(error.unsqueeze(1) * chosen)
                clipped_step(policy.optimizer, settings.max_grad_norm)
        last_loss, abs_q = torch.stack([loss, q.abs().mean()]).tolist()  # nothing is read back before
        return Evaluated(len(batches), last_loss, abs_q)

    def loss(self, settings: Any, q: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """½ MSE, the loss that trains, of the actions taken; override it for another one. [E, B], [B] → scalar"""
        return half_mse(q, target)

    def known_targets(self, rollout: Rollout) -> torch.Tensor | None:
        """Whether it is known what is allowed after each step, if not everything is. → [T · N]"""
        if rollout.next_masks is None:
            return None
        known = torch.ones(len(rollout), dtype=torch.bool, device=rollout.device)
        known[rollout.next_rows] = are_complete(rollout.next_masks, self.factors)
        return known

    @torch.no_grad()
    def targets(self, rollout: Rollout, shared: Shared, settings: Settings, step_size: StepSize) -> torch.Tensor:
        """Soft λ-returns of a rollout's steps; no trace leads into one whose target is not known. → [T, N]"""
        tau, shape = step_size.entropy_weight, (rollout.length, rollout.n_envs)
        masks, known = rollout.flat_masks, self.known_targets(rollout)
        log_pi = self.policy.log_policy(rollout.flat("accumulated"), masks).float()  # [T·N, A]
        has_q = rollout.has_q and self.policy.improvement.froze(self.policy.q_net)
        q = rollout.flat("q") if has_q else self.policy.mean_q(rollout.flat("observations"))
        values = soft_value(q, log_pi, tau).view(shape)
        next_values = torch.cat([values[1:], values[-1:]])  # the last row is always a cut
        at_cuts = self.policy.log_policy(rollout.next_accumulated, rollout.next_masks).float()
        next_values.view(-1)[rollout.next_rows] = soft_value(
            self.policy.mean_q(rollout.next_observations), at_cuts, tau
        )
        own = own_probability(log_pi, rollout.flat("actions"), shared.epsilon, self.factors, masks)
        own = (own if known is None else own * known).view(shape)
        return lambda_returns(
            rollout.rewards[: rollout.length],
            rollout.terminated[: rollout.length],
            rollout.cut[: rollout.length],
            next_values,
            settings.trace_decay * own * rollout.fresh[: rollout.length],
            tau * entropy(log_pi).view(shape),
            shared.gamma,
            shared.reward_scale,
        )


def own_probability(
    log_pi: torch.Tensor, actions: torch.Tensor, epsilon: float, factors: Factors, masks: torch.Tensor | None = None
) -> torch.Tensor:
    """(1 − ε) π(a|s) / b(a|s): how probable it is that an action was π's own, not one of exploration.

    b = (1 − ε) π + ε/|A(s)| is the behaviour. [n, A], indices [n] or [n, D], masks [n, A] → [n]
    """
    chosen = log_pi.gather(-1, factors.outputs_of(actions).mT).sum(-1)  # log π(a|s), of all parts
    if epsilon >= 1.0:
        return torch.zeros_like(chosen)
    count: float | torch.Tensor = factors.log_count if masks is None else log_count(masks, factors).to(chosen.dtype)
    odds = math.log(epsilon / (1 - epsilon)) - count if epsilon > 0 else -math.inf
    return torch.sigmoid(chosen - odds)
