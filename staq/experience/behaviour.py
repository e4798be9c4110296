"""How actions are drawn while data is collected: ε-softmax, and its sticky variant (App. B.3)."""

from __future__ import annotations

from typing import Any, Literal

import torch

from staq.actions import Factors
from staq.actions.masks import are_allowed, forbid, uniform

BehaviourName = Literal["softmax", "sticky"]


def epsilon_softmax(logits: torch.Tensor, epsilon: float, masks: torch.Tensor | None = None) -> torch.Tensor:
    """(1 − ε) softmax(ξ) + ε/|A|: a uniform action with probability ε, else one of the policy's. [B, A]

    :param masks: which actions are allowed [B, A], if not all are: both are then over A(s)
    """
    explored = epsilon / logits.shape[-1] if masks is None else epsilon * uniform(masks)
    return (1.0 - epsilon) * forbid(logits, masks).softmax(-1) + explored


class Behaviour:
    """Draws one action per environment; in the sticky variant each is held for a random number of steps."""

    def __init__(
        self,
        name: BehaviourName,
        n_envs: int,
        epsilon: float,
        sticky_rate: float,
        generator: torch.Generator,
        factors: Factors,
    ) -> None:
        self.sticky = name == "sticky"
        self.epsilon = epsilon
        self.generator = generator
        self.rate = torch.full((n_envs,), float(sticky_rate), device=generator.device)
        self.factors = factors
        indices = (n_envs,) if factors.single else (n_envs, len(factors.sizes))
        self.held_action = torch.zeros(indices, dtype=torch.long, device=generator.device)
        self.steps_left = torch.zeros(n_envs, dtype=torch.long, device=generator.device)
        self.fresh = torch.ones(n_envs, dtype=torch.bool, device=generator.device)
        """Whether the last actions were drawn for the states they were taken in, rather than held."""

    def act(self, logits: torch.Tensor, masks: torch.Tensor | None = None) -> torch.Tensor:
        """Draw action indices for the environments' logits. [n_envs, A] → [n_envs], or [n_envs, D] of several parts

        :param masks: which actions are allowed [n_envs, A], if not all are
        """
        drawn = self.factors.draw(self._probabilities(logits, masks), self.generator)
        if not self.sticky:
            return drawn
        # A draw of 0 steps would never be applied: an action is held for max(1, Poisson(λ)) steps in total.
        durations = torch.poisson(self.rate, generator=self.generator).long().clamp(min=1)
        expired = self.steps_left == 0
        if masks is not None:
            expired |= ~are_allowed(self.held_action, masks, self.factors)
        renewed = expired if self.factors.single else expired.unsqueeze(-1)
        self.held_action, self.fresh = torch.where(renewed, drawn, self.held_action), expired
        self.steps_left = torch.where(expired, durations, self.steps_left) - 1
        return self.held_action

    def _probabilities(self, logits: torch.Tensor, masks: torch.Tensor | None) -> torch.Tensor:
        if self.factors.single:
            return epsilon_softmax(logits, self.epsilon, masks)
        # ε is that of the whole action, and a mixture of products is no product: who explores is drawn first.
        explores = torch.rand(len(logits), 1, generator=self.generator, device=logits.device) < self.epsilon
        return self.factors.softmax(forbid(torch.where(explores, 0.0, logits), masks))

    def end_episodes(self, dones: torch.Tensor) -> None:
        """Drops the held action of every environment whose episode has just ended. dones: bool [n_envs]"""
        self.steps_left.masked_fill_(dones, 0)

    def state_dict(self) -> dict[str, Any]:
        return {"held_action": self.held_action, "steps_left": self.steps_left}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.held_action.copy_(state["held_action"])
        self.steps_left.copy_(state["steps_left"])
