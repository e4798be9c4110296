"""Observations of several parts (a Dict space) as rows of bytes: what stores and draws observations sees one tensor."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from gymnasium import spaces


class Part(NamedTuple):
    """One entry of a Dict space, and where it lies in a row."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    bytes: slice


class ObservationParts:
    """The parts of a Dict space, side by side in their own types: nothing is rounded, and nothing grows.

    :param space: of one level, as in SB3
    """

    def __init__(self, space: spaces.Dict) -> None:
        self.space = space
        self.parts: dict[str, Part] = {}
        end = 0
        for key, inner in space.spaces.items():
            assert inner.shape is not None
            start, dtype = end, _stored_type(inner)
            end += math.prod(inner.shape) * dtype.itemsize
            self.parts[key] = Part(inner.shape, dtype, slice(start, end))
        self.stored_space = spaces.Box(0, 255, (end,), dtype=np.uint8)
        """Of the rows."""

    def packed(self, obs: dict[str, torch.Tensor]) -> torch.Tensor:
        """{key: [B, ...]} → uint8 [B, bytes]"""
        rows = []
        for key, part in self.parts.items():
            values = obs[key]
            if not torch.can_cast(values.dtype, part.dtype):
                raise ValueError(
                    f"The observation {key!r} came as {values.dtype}, and its space is {self.space[key]}. Under "
                    "VecNormalize, name the keys to normalise with norm_obs_keys, without images."
                )
            values = values.to(part.dtype).contiguous().reshape(len(values), -1)
            rows.append(values.view(torch.uint8) if values.shape[1] else values.to(torch.uint8))
        return torch.cat(rows, dim=1)

    def unpacked(self, rows: torch.Tensor) -> dict[str, torch.Tensor]:
        """uint8 [B, bytes] → {key: [B, ...]}"""
        found = {}
        for key, part in self.parts.items():
            bytes_of_part = rows[:, part.bytes]
            aligned = torch.empty_like(bytes_of_part, memory_format=torch.contiguous_format).copy_(bytes_of_part)
            found[key] = aligned.view(part.dtype).view(len(rows), *part.shape)
        return found


def _stored_type(space: spaces.Space) -> torch.dtype:
    dtype = np.dtype(space.dtype)
    if dtype in (np.uint16, np.uint32, np.uint64):  # torch stores these and can do little with them
        dtype = np.dtype(np.int64)
    return torch.as_tensor(np.zeros(1, dtype=dtype)).dtype
