"""The entropy-regularised Bellman target and its regression loss (Sec. 3 and Eq. 13) as pure functions."""

from __future__ import annotations

from typing import Literal

import torch

TargetReduce = Literal["mean", "min"]


def entropy(log_pi: torch.Tensor) -> torch.Tensor:
    """H(π) = −h(π) = −π · log π over the last axis. [..., A] → [...]"""
    return -(log_pi.exp() * log_pi).sum(-1)


def ensemble_value(q: torch.Tensor, reduce: TargetReduce) -> torch.Tensor:
    """One q̂, or one value, from those of the ensemble: their mean (App. D) or their minimum. [E, ...] → [...]"""
    return q.mean(0) if reduce == "mean" else q.amin(0)


def soft_value(q: torch.Tensor, log_pi: torch.Tensor, entropy_weight: float) -> torch.Tensor:
    """V(s) = Σ_a π(a|s) q(s, a) + τ H(π(s)), the exact expectation over actions. [..., A] → [...]"""
    return (log_pi.exp() * q).sum(-1) + entropy_weight * entropy(log_pi)


def soft_value_of_sample(
    q: torch.Tensor, log_pi: torch.Tensor, entropy_weight: float, generator: torch.Generator
) -> torch.Tensor:
    """The same with one sampled action in place of the expectation; the entropy stays exact.

    q of several networks are asked for the same action. [..., B, A], [B, A] → [..., B]
    """
    actions = torch.multinomial(log_pi.exp(), 1, generator=generator)
    taken = q.gather(-1, actions if q.dim() == 2 else actions.expand(*q.shape[:-1], 1))
    return taken.squeeze(-1) + entropy_weight * entropy(log_pi)


def soft_target(
    reward: torch.Tensor,
    terminated: torch.Tensor,
    next_value: torch.Tensor,
    discount: float,
    reward_scale: float,
) -> torch.Tensor:
    """scale · r + γ (1 − terminated) V(s'). A truncated episode bootstraps: only ``terminated`` cuts."""
    return reward_scale * reward + discount * torch.where(terminated, 0.0, next_value)


def lambda_returns(
    reward: torch.Tensor,
    terminated: torch.Tensor,
    cut: torch.Tensor,
    next_value: torch.Tensor,
    trace: torch.Tensor,
    entropy_bonus: torch.Tensor,
    discount: float,
    reward_scale: float,
) -> torch.Tensor:
    """Soft λ-returns by backward recursion over the steps of a rollout, all [T, N],

    G_t = scale · r_t + γ (1 − terminated_t) [(1 − λ_{t+1}) V(s_{t+1}) + λ_{t+1} (G_{t+1} + τ H(π(s_{t+1})))]

    :param cut: where the next row is not the next step: an episode's or the rollout's end; λ_{t+1} is 0 there
    :param next_value: V(s_{t+1}) under π
    :param trace: λ_t, times the probability that a_t was π's own
    :param entropy_bonus: τ H(π(s_t))
    """
    next_trace = torch.where(cut[:-1], 0.0, trace[1:])
    ahead = next_value.clone()
    ahead[:-1] += next_trace * (entropy_bonus[1:] - next_value[:-1])
    returns = soft_target(reward, terminated, ahead, discount, reward_scale)
    passed_on = discount * next_trace * ~terminated[:-1]
    for t in range(len(returns) - 2, -1, -1):
        returns[t].addcmul_(passed_on[t], returns[t + 1])
    return returns


def half_mse(q: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Eq. 13 for each network of the ensemble, summed: networks share no weights. [E, B], [B] → scalar"""
    return 0.5 / q.shape[-1] * torch.nn.functional.mse_loss(q, target.expand_as(q), reduction="sum")
