"""Actions that a state forbids: A(s) ⊂ A, as a mask over all of them.

Mirror descent over A(s) is mirror descent: a forbidden action's log-probability is a number so low that its probability
is exactly 0, and everything that is summed over actions (expectations, entropies, divergences) then is a sum over A(s).
A mask is boolean, [..., ΣK]: over the choices of every part, side by side, as sb3-contrib has it.
"""

from __future__ import annotations

import numpy as np
import torch

from staq.actions.factored import Factors

FORBIDDEN = -1e30
"""Finite, since 0 · log 0 must be 0."""


def forbid(logits: torch.Tensor, masks: torch.Tensor | None, value: float = FORBIDDEN) -> torch.Tensor:
    """Logits, or log-probabilities, of which only those of allowed actions count. [..., A], [..., A] → [..., A]"""
    return logits if masks is None else logits.masked_fill(~masks, value)


def uniform(masks: torch.Tensor) -> torch.Tensor:
    """The uniform policy over the allowed actions of a single part. [..., A] → [..., A]"""
    allowed = masks.double()
    return allowed / allowed.sum(-1, keepdim=True)


def log_count(masks: torch.Tensor, factors: Factors) -> torch.Tensor:
    """ln|A(s)|. [..., ΣK] → [...]"""
    return factors.total(lambda part: part.sum(-1).log(), masks.double())


def are_allowed(indices: torch.Tensor, masks: torch.Tensor, factors: Factors) -> torch.Tensor:
    """Whether every part of each action is allowed. [B] or [B, D], [B, ΣK] → [B]"""
    return masks.gather(-1, factors.outputs_of(indices).mT).all(-1)


def are_complete(masks: torch.Tensor, factors: Factors) -> torch.Tensor:
    """Whether something is allowed of every part: the mask of a state that is not known has nothing. → [...]"""
    return factors.total(lambda part: (~part.any(-1)).long(), masks) == 0


def masks_given(given: np.ndarray, factors: Factors, device: torch.device) -> torch.Tensor:
    """Masks as a caller of a policy gives them, checked: [ΣK] of one state, or [B, ΣK]. → bool [B, ΣK]"""
    masks = torch.as_tensor(np.asarray(given).astype(bool), device=device)
    if masks.shape[-1:] != (factors.n_outputs,):
        raise ValueError(
            f"action_masks of shape {tuple(masks.shape)} for {factors.n_outputs} choices: the last axis needs one "
            "entry for each."
        )
    masks = masks.reshape(-1, factors.n_outputs)
    complete = are_complete(masks, factors)
    if not complete.all():
        row = int((~complete).nonzero()[0])
        raise ValueError(f"action_masks allow nothing in row {row}: a policy needs an action.")
    return masks
