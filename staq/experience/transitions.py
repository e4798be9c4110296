"""What a vectorised environment returns, as transitions."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

Observations = np.ndarray | dict[str, np.ndarray]
"""Of several environments [N, ...], by key where they have several parts."""


class StepMasks(NamedTuple):
    """Which actions are allowed in the states that a step leads from and to, bool [environments, A] each."""

    now: torch.Tensor
    next: torch.Tensor
    """Without any action where it is not known: such a step is not learned from."""


def next_observations(new_obs: Observations, dones: np.ndarray, infos: list[dict[str, Any]]) -> Observations:
    """s' of every environment: where an episode has ended, its last state, which SB3 hands over in the info."""
    found = copied(new_obs)
    for i in np.flatnonzero(dones):
        last = infos[i].get("terminal_observation")
        if last is None:
            continue
        if isinstance(found, dict):
            for key, values in found.items():
                values[i] = last[key]
        else:
            found[i] = last
    return found


def copied(obs: Observations) -> Observations:
    """A copy of its own."""
    return {key: np.array(values) for key, values in obs.items()} if isinstance(obs, dict) else np.array(obs)


def is_truncated(infos: list[dict[str, Any]]) -> np.ndarray:
    """Whether each episode was cut by a limit of time rather than by an end, as SB3's infos tell."""
    return np.array([info.get("TimeLimit.truncated", False) for info in infos], dtype=bool)


def as_tensor(array: Any, device: torch.device) -> torch.Tensor:
    """An array of any type that Gymnasium has, on a device."""
    if isinstance(array, torch.Tensor):
        return array.to(device)
    array = np.asarray(array)
    if array.dtype in (np.uint16, np.uint32, np.uint64):  # torch stores these and can do little with them
        array = array.astype(np.int64)
    return torch.as_tensor(array, device=device)


LARGEST = 1e15
"""Of what a network sees and learns: squares of more, in a loss or in Adam, are soon infinite in float32."""


def check_finite(what: str, values: Any, step: int) -> None:
    """Raises for the first environment whose reward or observation is no number, or too large, before it is stored."""
    if isinstance(values, dict):
        for key, part in values.items():
            check_finite(f"{what} {key!r}", part, step)
        return
    values = np.asarray(values)
    if np.issubdtype(values.dtype, np.floating) and not np.abs(values).max(initial=0) <= LARGEST:  # NaN is not either
        fits = np.abs(values) <= LARGEST
        index = int(np.argwhere(~fits)[0][0])
        how = f"beyond {LARGEST:g}" if np.isfinite(values).all() else "not finite"
        raise FloatingPointError(
            f"Environment {index} returned {what} that is {how} at step {step} "
            f"({np.asarray(values[index]).tolist()}). Training stopped before it was stored: checkpoints are "
            "intact. Mend or clip the environment's output."
        )


def at(values: torch.Tensor | None, rows: Any) -> torch.Tensor | None:
    """Some rows of what may not be there."""
    return None if values is None else values[rows]
