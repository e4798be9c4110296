"""Policy mirror descent in logit space: Eqs. 2–6 of the paper as pure functions.

The policy after n evaluations is softmax(ξ), and ξ is a weighted sum of Q-functions,

    ξ = prefactor · c,    c = Σ_i w_i q_i,

where the relative weights w decay with every update and the prefactor belongs to the current iteration.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the tabular theory shares this module and needs no PyTorch
    import torch


@dataclass(frozen=True)
class StepSize:
    """The two regularisation weights of one policy update, and what follows from them (below Eq. 5)."""

    entropy_weight: float
    """τ, the weight of the entropy bonus."""
    kl_weight: float
    """η, the weight of the KL divergence to the previous policy."""

    @property
    def alpha(self) -> float:
        """α = 1/(η + τ): how much of the new Q-function enters the logits."""
        return 1.0 / (self.kl_weight + self.entropy_weight)

    @property
    def beta(self) -> float:
        """β = η/(η + τ): how much of the old logits stays."""
        return self.kl_weight / (self.kl_weight + self.entropy_weight)


def annealed(initial: float, final: float, decay_steps: int, steps: int) -> float:
    """Linear from ``initial`` at 0 steps to ``final`` at ``decay_steps``, constant after (App. D)."""
    progress = min(steps / decay_steps, 1.0) if decay_steps > 0 else 1.0
    return initial + progress * (final - initial)


def memory_correction(beta: float, memory_size: int | None) -> float:
    """1/(1 − β^M) of Eq. 2, which lets the weights of M networks sum to 1/τ; 1 without a limit (Eq. 1)."""
    return 1.0 if memory_size is None else 1.0 / (1.0 - beta**memory_size)


def pushed_weights(
    weights: list[float], beta: float, new_weight: float, memory_size: int | None
) -> tuple[list[float], float | None]:
    """Relative weights, oldest first, after one push, and the weight of the network that it deletes.

    Every kept network is multiplied by the β of this update, so under an annealed entropy weight the
    weight of q_{k−i} is the product of the βs since then, not a power of the current one.
    """
    decayed = [beta * weight for weight in weights] + [new_weight]
    if memory_size is not None and len(decayed) > memory_size:
        return decayed[1:], decayed[0]
    return decayed, None


def mirror_step(log_pi: torch.Tensor, q: torch.Tensor, step_size: StepSize) -> torch.Tensor:
    """log π_{k+1} = log π_k^β exp(α q_k)/Z, the maximiser of Eq. 4 (Eq. 5). [..., A]"""
    return (step_size.beta * log_pi + step_size.alpha * q).log_softmax(-1)


def centred(q: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """q minus its mean over actions: the same policy, at a magnitude where float32 still resolves advantages."""
    return q - q.mean(dim=dim, keepdim=True)


def kl_divergence(log_p: torch.Tensor, log_q: torch.Tensor) -> torch.Tensor:
    """KL(p; q) = p · (log p − log q) over the last axis (below Eq. 4)."""
    return (log_p.exp() * (log_p - log_q)).sum(-1)
