"""No global random state: one generator per component, all derived from the one seed."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch


def derived_generators(seed: int | None, devices: Mapping[str, torch.device | str]) -> dict[str, torch.Generator]:
    """Independent generators by name, on their devices, from the one seed (or from the system's entropy)."""
    children = np.random.SeedSequence(seed).spawn(len(devices))
    seeds = [int(child.generate_state(1, np.uint64)[0] >> 1) for child in children]
    return {
        name: torch.Generator(device).manual_seed(seed)
        for (name, device), seed in zip(devices.items(), seeds, strict=True)
    }
