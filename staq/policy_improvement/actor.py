"""Policies that are one network, trained towards the update that StaQ makes exactly (App. C)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from staq.actions.masks import forbid
from staq.hyperparameters import Group, at_least, setting
from staq.networks.architecture import Architecture
from staq.networks.chunks import chunk_size
from staq.networks.ensemble import QEnsemble
from staq.networks.gradients import backpropagation, differentiate
from staq.policy_improvement.improvement import LogitsChange, PolicyImprovement, mean_centred
from staq.policy_improvement.mirror_descent import StepSize, kl_divergence, mirror_step

if TYPE_CHECKING:
    from staq.experience.states import States


class Actor(PolicyImprovement):
    """A network of the critics' architecture, uniform at first, whose centred outputs are the policy's logits."""

    def __init__(self, architecture: Architecture, n_critics: int, settings: Any) -> None:
        super().__init__(architecture, n_critics, settings)
        self.factors = architecture.factors
        self.actor = QEnsemble(architecture, 1)
        self._divergence = 0.0

    def accumulated(self, obs: torch.Tensor) -> torch.Tensor:
        """There is nothing to accumulate: the logits themselves, centred."""
        chunks = obs.split(chunk_size(self.actor.device))
        logits_of = partial(self.architecture.frozen_q_values, self.actor.weights)
        return torch.cat([mean_centred(logits_of(chunk), self.factors) for chunk in chunks])

    def log_policy(self, obs: torch.Tensor, masks: torch.Tensor | None = None) -> torch.Tensor:
        """log π over the actions that are allowed, float64 [B, A]"""
        return self.factors.log_softmax(forbid(self.accumulated(obs), masks))

    @torch.no_grad()
    def improve(self, q_net: QEnsemble, states: States, step_size: StepSize) -> LogitsChange:
        step_size = self.effective(step_size)
        log_pi, q = (values[states.watched].double() for values in (states.log_pi, states.q))
        exact = self.factors.each(partial(mirror_step, step_size=step_size), log_pi, q)
        self.train_actor(states, step_size)
        reached = self.log_policy(states.obs[states.watched], states.masks_at(states.watched))
        self._divergence = kl_divergence(exact, reached).mean().item()
        return LogitsChange(0.0, [(self.actor.weights, 1.0)])

    def effective(self, step_size: StepSize) -> StepSize:
        """The regularisation weights of this update."""
        return step_size

    @abstractmethod
    def train_actor(self, states: States, step_size: StepSize) -> None:
        """π_k → π_{k+1} on visited states."""

    def as_stack(self) -> dict[str, Any]:
        """A stack of one ensemble, all of whose networks are the actor."""
        networks = {name: w.detach().repeat_interleave(self.n_critics, 0) for name, w in self.actor.weights.items()}
        return {"n_pushed": 1, "relative_weights": [1.0], "prefactor": 1.0, "networks": networks}

    def diagnostics(self) -> dict[str, float]:
        return {"kl_from_exact_update": self._divergence}


Loss = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, StepSize], torch.Tensor]
"""(log π, q_k, log π_k, all [B, A]; τ and η) → a number to minimise."""


def information_projection(
    log_pi: torch.Tensor, q: torch.Tensor, log_pi_k: torch.Tensor, step_size: StepSize
) -> torch.Tensor:
    """KL(π; π_k^β exp(α q)/Z). With η = 0 this is KL(π; softmax(q/τ)), SAC's objective (App. C.1)."""
    return kl_divergence(log_pi, mirror_step(log_pi_k, q, step_size)).mean()


def moment_projection(
    log_pi: torch.Tensor, q: torch.Tensor, log_pi_k: torch.Tensor, step_size: StepSize
) -> torch.Tensor:
    """KL(π_k^β exp(α q)/Z; π), ECPO's objective (App. C.3)."""
    return kl_divergence(mirror_step(log_pi_k, q, step_size), log_pi).mean()


def direct(log_pi: torch.Tensor, q: torch.Tensor, log_pi_k: torch.Tensor, step_size: StepSize) -> torch.Tensor:
    """−[q·π − τh(π) − η KL(π; π_k)], MDPO's objective: that of Eq. 4, on average over states (App. C.3)."""
    pi = log_pi.exp()
    negative_entropy = (pi * log_pi).sum(-1)
    gain = (q * pi).sum(-1) - step_size.entropy_weight * negative_entropy
    return -(gain - step_size.kl_weight * kl_divergence(log_pi, log_pi_k)).mean()


class GradientActor(Actor):
    """An actor that takes gradient steps on a loss; warm-started, with its optimiser's state retained."""

    @dataclass(frozen=True)
    class Settings(Group):
        """How long an actor is trained; its optimiser, learning rate and batch size are the critics'."""

        actor_steps: int | None = setting(
            5000,
            "m, gradient steps of the actor per iteration; None is n_epochs passes over a rollout, one over a replay",
            at_least(1, or_none="for passes over the experience"),
        )

    trains = True
    loss: ClassVar[Any]
    """A ``Loss``."""
    _loss = 0.0
    regularised: ClassVar[bool] = True
    """Whether the update stays close to π_k; otherwise η is 0, whatever the algorithm's."""

    def effective(self, step_size: StepSize) -> StepSize:
        return step_size if self.regularised else StepSize(step_size.entropy_weight, 0.0)

    def train_actor(self, states: States, step_size: StepSize) -> None:
        assert self.optimizer is not None
        batches, q, log_pi = states.minibatches(self.settings.actor_steps), states.q, states.log_pi
        actor, total = backpropagation(self.actor, batches.shape[1]), torch.zeros((), device=q.device)
        loss_of_part = partial(type(self).loss, step_size=step_size)

        def loss(
            logits: torch.Tensor, q: torch.Tensor, log_pi_k: torch.Tensor, masks: torch.Tensor | None
        ) -> torch.Tensor:
            # Each loss is a divergence or Eq. 4's objective: over independent parts they add up.
            return self.factors.total(loss_of_part, self.factors.log_softmax(forbid(logits, masks)), q, log_pi_k)

        for rows in batches:
            logits = actor.forward(states.obs[rows])[0].t()  # [B, A]
            value, error = differentiate(loss, logits, q[rows], log_pi[rows], states.masks_at(rows))
            actor.backward(error.t().unsqueeze(0).contiguous())
            self.optimizer.step()
            total += value
        self._loss = total.item() / len(batches)

    def diagnostics(self) -> dict[str, float]:
        return super().diagnostics() | {"actor_loss": self._loss}


class InformationProjection(GradientActor):
    """AC-NoKL's (SAC): towards softmax(q/τ), wherever π_k was."""

    loss = staticmethod(information_projection)
    regularised = False


class MomentProjection(GradientActor):
    """AC-MProj's (ECPO): the M-projection of the mirror descent step."""

    loss = staticmethod(moment_projection)


class DirectOptimization(GradientActor):
    """AC-DirectOpt's (MDPO): the mirror descent objective itself."""

    loss = staticmethod(direct)
