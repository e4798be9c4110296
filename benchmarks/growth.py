"""Pictures of how time and memory grow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from staq.experiments.timing import PHASES

TITLES = {
    "memory-size": "memory size M",
    "n-envs": "environments",
    "batch-size": "batch size",
    "width": "width of the hidden layer",
    "buffer-size": "replay size",
}


def draw(results: dict[str, Any], folder: Path) -> None:
    """growth.png: the phases of a step stacked, and peak memory, against every setting."""
    growth = results["growth"]
    figure, axes = plt.subplots(2, len(growth), figsize=(3.4 * len(growth), 5.6), layout="constrained")
    for column, (setting, points) in enumerate(growth.items()):
        values = sorted(points, key=int)
        labels = [f"{int(value):,}" for value in values]
        bottom = [0.0] * len(values)
        for phase in PHASES:
            ms = [points[value]["ms"][phase] for value in values]
            axes[0, column].bar(labels, ms, bottom=bottom, label=phase)
            bottom = [b + m for b, m in zip(bottom, ms, strict=True)]
        axes[1, column].bar(labels, [points[value]["peak_gb"] for value in values], color="0.5")
        axes[1, column].set_xlabel(TITLES[setting])
    axes[0, 0].set_ylabel("ms per environment step")
    axes[1, 0].set_ylabel("peak memory, GB")
    handles, names = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles[::-1], names[::-1], loc="outside right upper", frameon=False)
    figure.suptitle("MinAtar/SpaceInvaders-v1, the paper's settings, M = 300, 50 environments but for what varies")
    figure.savefig(folder / "growth.png", dpi=130)
    plt.close(figure)
