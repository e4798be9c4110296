"""Policies that are one network, trained towards the update that StaQ makes exactly (App. C)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import nn

from staq.backpropagation import backpropagation
from staq.mirror_descent import StepSize, centred, kl_divergence, mirror_step
from staq.optimizer import LeanAdam
from staq.q_networks import Architecture, QEnsemble, Weights
from staq.replay import PIECE, Replay
from staq.updates.policy_update import PolicyUpdate


class ActorUpdate(PolicyUpdate):
    """An actor of the critics' architecture, uniform at first, whose logits are the policy's."""

    def __init__(self, architecture: Architecture, n_critics: int) -> None:
        super().__init__()
        self.n_critics = n_critics
        self.factors = architecture.factors
        self.actor = QEnsemble(architecture, 1)
        self._divergence = 0.0

    def accumulated(self, obs: torch.Tensor) -> torch.Tensor:
        """There is nothing to accumulate: the logits themselves, centred."""
        with torch.no_grad():
            pieces = (self.actor(piece)[0].t().double() for piece in obs.split(PIECE))
            return torch.cat([self.factors.each(centred, piece) for piece in pieces])

    def logits(self, accumulated: torch.Tensor) -> torch.Tensor:
        return accumulated

    def log_policy(self, obs: torch.Tensor) -> torch.Tensor:
        """log π, float64 [B, A]"""
        return self.factors.log_softmax(self.accumulated(obs))

    def begin_iteration(self, step_size: StepSize) -> None:
        """An actor does not change with the entropy weight."""

    @torch.no_grad()
    def improve(self, q_net: QEnsemble, replay: Replay, step_size: StepSize) -> None:
        """Trains the actor on the replayed states, for which q_k and π_k are computed once."""
        step_size = self.effective(step_size)
        obs = replay.observations[: replay.size()]
        q = torch.cat([q_net(piece).mean(0).t() for piece in obs.split(PIECE)])
        log_pi = self.log_policy(obs).float()
        self.train_actor(obs, q, log_pi, replay, step_size)
        for rows in replay.filled_rows():
            replay.accumulated[rows] = self.accumulated(replay.next_observations[rows])
        reached = self.log_policy(obs)
        exact = self.factors.each(partial(mirror_step, step_size=step_size), log_pi.double(), q.double())
        self._divergence = kl_divergence(exact, reached).mean().item()

    def effective(self, step_size: StepSize) -> StepSize:
        """The regularisation weights of this update."""
        return step_size

    @abstractmethod
    def train_actor(
        self, obs: torch.Tensor, q: torch.Tensor, log_pi: torch.Tensor, replay: Replay, step_size: StepSize
    ) -> None:
        """π_k → π_{k+1} on states [n, ...] with their q_k and log π_k, [n, A]."""

    def as_stack(self) -> dict[str, Any]:
        """A stack of one ensemble, all of whose networks are the actor."""
        networks = {name: w.detach().repeat_interleave(self.n_critics, 0) for name, w in self.actor.weights.items()}
        return {"n_pushed": 1, "relative_weights": [1.0], "prefactor": 1.0, "networks": networks}

    def frozen_q_values(self, obs: torch.Tensor) -> torch.Tensor:
        return torch.empty(0, self.n_critics, self.actor.architecture.n_actions, len(obs), device=obs.device)

    def frozen_names(self) -> list[str]:
        return []

    def frozen(self, name: str) -> dict[str, torch.Tensor]:
        raise KeyError(name)

    def checkpoint(self) -> dict[str, Any]:
        optimizer = None if self.optimizer is None else self.optimizer.state_dict()
        return {"actor": self.actor.state_dict(), "optimizer": optimizer}

    def load_checkpoint(self, state: dict[str, Any], frozen: Iterable[Weights]) -> None:
        self.actor.load_state_dict(state["actor"])
        if self.optimizer is not None:
            self.optimizer.load_state_dict(state["optimizer"])

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


class GradientActor(ActorUpdate):
    """An actor that takes gradient steps on a loss; warm-started, with its optimiser's state kept.

    :param regularised: whether the update stays close to π_k; otherwise η is 0, whatever the algorithm's
    """

    def __init__(
        self,
        architecture: Architecture,
        n_critics: int,
        loss: Loss,
        actor_steps: int,
        batch_size: int,
        make_optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer] = LeanAdam,
        regularised: bool = True,
    ) -> None:
        super().__init__(architecture, n_critics)
        self.loss, self.actor_steps, self.batch_size = loss, actor_steps, batch_size
        self.regularised = regularised
        self.optimizer = make_optimizer(self.actor.parameters())  # the algorithm sets its rate
        self._loss = 0.0

    def effective(self, step_size: StepSize) -> StepSize:
        return step_size if self.regularised else StepSize(step_size.entropy_weight, 0.0)

    def train_actor(
        self, obs: torch.Tensor, q: torch.Tensor, log_pi: torch.Tensor, replay: Replay, step_size: StepSize
    ) -> None:
        assert self.optimizer is not None
        actor, total = backpropagation(self.actor, self.batch_size), torch.zeros((), device=obs.device)

        def objective(log_pi: torch.Tensor, q: torch.Tensor, log_pi_k: torch.Tensor) -> torch.Tensor:
            return self.loss(log_pi, q, log_pi_k, step_size)

        for rows in replay.draw(self.actor_steps, self.batch_size):
            with torch.enable_grad():
                logits = actor.forward(replay.kept[rows])[0].t().detach().requires_grad_()  # [B, A]
                # Each loss is a divergence or Eq. 4's objective: over independent parts they add up.
                loss = self.factors.total(objective, self.factors.log_softmax(logits), q[rows], log_pi[rows])
                (error,) = torch.autograd.grad(loss, logits)
            actor.backward(error.t().unsqueeze(0).contiguous())
            self.optimizer.step()
            total += loss.detach()
        self._loss = total.item() / self.actor_steps

    def diagnostics(self) -> dict[str, float]:
        return super().diagnostics() | {"actor_loss": self._loss}
