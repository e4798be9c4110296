"""A natural gradient step with a line search: TRPO's update within StaQ's loop (App. C.3, NatGrad + LS)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from staq.hyperparameters import NOT_NEGATIVE, POSITIVE, Group, at_least, setting
from staq.networks.chunks import chunks
from staq.policy_evaluation.soft_bellman import soft_value
from staq.policy_improvement.actor import Actor
from staq.policy_improvement.mirror_descent import StepSize, kl_divergence

if TYPE_CHECKING:
    from staq.experience.states import States

BACKTRACKING = 0.8
"""Factor between two trials of the line search."""


class NaturalGradient(Actor):
    """θ ← θ + s F⁻¹g, with g = E_D[∇π·(q − τ log π)] and F the Fisher information on the same states.

    The step s starts at √(2ε_KL / gᵀF⁻¹g), where a quadratic model of the divergence reaches ε_KL, and shrinks until
    KL(π_new; π_k) ≤ ε_KL and the objective E_D[π·q − τh(π)] rises; if it never does, the policy stays.
    """

    @dataclass(frozen=True)
    class Settings(Group):
        """How far a step goes, and how exactly its direction is found; ``kl_weight`` plays no part."""

        max_kl: float = setting(0.001, "ε_KL, the largest mean divergence from the previous policy", POSITIVE)
        cg_steps: int = setting(10, "steps of conjugate gradients", at_least(1))
        cg_damping: float = setting(0.01, "added to the diagonal of the Fisher information", NOT_NEGATIVE)
        max_states: int | None = setting(
            None, "visited states that a step is computed on; None for all", at_least(1, or_none="for all")
        )
        line_search_steps: int = setting(10, "how often the step is shortened before it is given up", at_least(1))

    _trials = 0

    def train_actor(self, states: States, step_size: StepSize) -> None:
        some, tau = states.some(self.settings.max_states), step_size.entropy_weight
        obs, q, log_pi = states.obs[some], states.q[some], states.log_pi[some]
        g = self.gradient(obs, q, log_pi, tau)
        direction = conjugate_gradients(lambda v: self.fisher_product(obs, log_pi, v), g, self.settings.cg_steps)
        expected = torch.dot(g, direction)
        if expected <= 0:  # the gradient is zero, up to rounding
            self._trials = 0
            return
        step = (2 * self.settings.max_kl / expected).sqrt() * direction
        self.line_search(obs, states.masks_at(some), q, log_pi, tau, step)

    def gradient(self, obs: torch.Tensor, q: torch.Tensor, log_pi: torch.Tensor, tau: float) -> torch.Tensor:
        """g: an action's share is how much its q − τ log π exceeds the policy's mean."""
        error = self.factors.each(_above_mean, log_pi.exp(), q - tau * log_pi) / len(obs)
        total = torch.zeros_like(self._parameters_as_vector())
        for rows in chunks(len(obs), obs.device):
            total += self._pulled_back(obs[rows], error[rows])
        return total

    def fisher_product(self, obs: torch.Tensor, log_pi: torch.Tensor, vector: torch.Tensor) -> torch.Tensor:
        """(F + damping) v, with F = E_D[Jᵀ(diag π − ππᵀ)J] and J the derivative of the logits by the weights."""
        total = self.settings.cg_damping * vector
        for rows in chunks(len(obs), obs.device):
            pi = log_pi[rows].exp()
            change = self._pushed_forward(obs[rows], vector)
            total += self._pulled_back(obs[rows], self.factors.each(_above_mean, pi, change) / len(obs))
        return total

    def line_search(
        self,
        obs: torch.Tensor,
        masks: torch.Tensor | None,
        q: torch.Tensor,
        log_pi: torch.Tensor,
        tau: float,
        step: torch.Tensor,
    ) -> None:
        """Takes the largest step of a falling sequence that is allowed, or none."""
        start, before = self._parameters_as_vector(), soft_value(q, log_pi, tau).mean()
        for trial in range(1, self.settings.line_search_steps + 1):
            self._set_parameters(start + step)
            new = self.log_policy(obs, masks).float()
            if kl_divergence(new, log_pi).mean() <= self.settings.max_kl and soft_value(q, new, tau).mean() > before:
                self._trials = trial
                return
            step = BACKTRACKING * step
        self._trials = 0
        self._set_parameters(start)

    def diagnostics(self) -> dict[str, float]:
        return super().diagnostics() | {"line_search_trials": self._trials}

    @property
    def _learned(self) -> dict[str, torch.Tensor]:
        """The weights that a step moves: a user's module may have others."""
        fixed = self.architecture.fixed
        return {name: w.detach() for name, w in self.actor.weights.items() if name not in fixed}

    def _logits(self, obs: torch.Tensor) -> Callable[[dict[str, torch.Tensor]], torch.Tensor]:
        rest = {name: w.detach() for name, w in self.actor.weights.items() if name in self.architecture.fixed}
        return lambda learned: self.architecture.q_values(rest | learned, obs)[0].t()  # [B, A]

    def _pushed_forward(self, obs: torch.Tensor, vector: torch.Tensor) -> torch.Tensor:
        """J v: how the logits change with the weights. → [B, A]"""
        change: torch.Tensor = torch.func.jvp(self._logits(obs), (self._learned,), (self._as_weights(vector),))[1]
        return change

    def _pulled_back(self, obs: torch.Tensor, error: torch.Tensor) -> torch.Tensor:
        """Jᵀ e. [B, A] → a vector of weights"""
        (pulled,) = torch.func.vjp(self._logits(obs), self._learned)[1](error)
        return torch.cat([pulled[name].flatten() for name in self._learned])

    def _parameters_as_vector(self) -> torch.Tensor:
        return torch.cat([w.flatten() for w in self._learned.values()])

    def _as_weights(self, vector: torch.Tensor) -> dict[str, torch.Tensor]:
        learned = self._learned
        pieces = vector.split([w.numel() for w in learned.values()])
        return {name: piece.view_as(w) for (name, w), piece in zip(learned.items(), pieces, strict=True)}

    def _set_parameters(self, vector: torch.Tensor) -> None:
        learned = self._learned
        for name, value in self._as_weights(vector).items():
            learned[name].copy_(value)


def conjugate_gradients(
    product: Callable[[torch.Tensor], torch.Tensor], b: torch.Tensor, steps: int, tolerance: float = 1e-10
) -> torch.Tensor:
    """x with A x ≈ b for a positive semi-definite A, given by its product with a vector."""
    x, residual = torch.zeros_like(b), b.clone()
    direction, norm = residual.clone(), torch.dot(residual, residual)
    for _ in range(steps):
        if norm <= tolerance * torch.dot(b, b):
            break
        pushed = product(direction)
        length = norm / torch.dot(direction, pushed)
        x += length * direction
        residual -= length * pushed
        norm, before = torch.dot(residual, residual), norm
        direction = residual + norm / before * direction
    return x


def _above_mean(pi: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """(diag π − ππᵀ) v: how the policy's mean of v changes with its logits. [..., A]"""
    return pi * (values - (pi * values).sum(-1, keepdim=True))
