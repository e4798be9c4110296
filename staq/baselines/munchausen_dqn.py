"""Munchausen DQN (Vieillard et al., 2020) as a stable-baselines3 DQN."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from stable_baselines3 import DQN
from torch.nn import functional as F

from staq.hyperparameters import NUMBER, POSITIVE, Group, Requirement, is_number, setting


@dataclass(frozen=True)
class Munchausen(Group):
    """What the Munchausen target adds to DQN's hyperparameters."""

    temperature: float = setting(0.03, "of the policy softmax(q/temperature) in the target", POSITIVE)
    scaling: float = setting(0.9, "weight of the log-policy that is added to the reward", NUMBER)
    clip: float = setting(
        -1.0,
        "lower bound of the scaled log-policy before weighting",
        Requirement(lambda v: is_number(v) and v <= 0, "a number of at most 0"),
    )


def munchausen_target(
    rewards: torch.Tensor,
    terminated: torch.Tensor,
    actions: torch.Tensor,
    q: torch.Tensor,
    next_q: torch.Tensor,
    discount: float | torch.Tensor,
    temperature: float,
    scaling: float,
    clip: float,
) -> torch.Tensor:
    """r + scaling · [temperature · log π(a|s)] clipped to [clip, 0] + γ Σ π'(q' − temperature · log π').

    q and next_q are those of the target network for s and s', [B, A]; π is the softmax of q/temperature. The rest
    is [B, 1].
    """
    log_pi = (q / temperature).log_softmax(-1).gather(1, actions)
    bonus = scaling * (temperature * log_pi).clamp(min=clip, max=0.0)
    next_log_pi = (next_q / temperature).log_softmax(-1)
    value = (next_log_pi.exp() * (next_q - temperature * next_log_pi)).sum(-1, keepdim=True)
    return rewards + bonus + (1.0 - terminated) * discount * value


class MDQN(DQN):
    """SB3's DQN with the Munchausen target; ``predict`` and exploration are DQN's.

    :param temperature: of the policy softmax(q/temperature) in the target
    :param scaling: weight of the log-policy that is added to the reward
    :param clip: lower bound of the scaled log-policy before weighting

    All else as in ``stable_baselines3.DQN``.
    """

    def __init__(
        self,
        policy: Any,
        env: Any,
        *arguments: Any,
        temperature: float = Munchausen.temperature,
        scaling: float = Munchausen.scaling,
        clip: float = Munchausen.clip,
        **more: Any,
    ) -> None:
        Munchausen(temperature, scaling, clip)  # which names a value that cannot work
        self.temperature, self.scaling, self.clip = temperature, scaling, clip
        super().__init__(policy, env, *arguments, **more)

    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        """As DQN's, but for the target."""
        assert self.replay_buffer is not None
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)
        losses = []
        for _ in range(gradient_steps):
            batch = self.replay_buffer.sample(batch_size, env=self._vec_normalize_env)
            actions = batch.actions.long()
            with torch.no_grad():
                target = munchausen_target(
                    batch.rewards,
                    batch.dones,
                    actions,
                    self.q_net_target(batch.observations),
                    self.q_net_target(batch.next_observations),
                    self.gamma if batch.discounts is None else batch.discounts,
                    self.temperature,
                    self.scaling,
                    self.clip,
                )
            loss = F.smooth_l1_loss(self.q_net(batch.observations).gather(1, actions), target)
            losses.append(loss.detach())
            self.policy.optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.policy.parameters(), self.max_grad_norm)
            self.policy.optimizer.step()
        self._n_updates += gradient_steps
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        self.logger.record("train/loss", float(np.mean([loss.item() for loss in losses])))
