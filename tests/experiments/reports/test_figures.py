"""Figures: legends that fit, bands and lines."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest

from staq.experiments import plans as experiments
from staq.experiments.reports import figures
from staq.experiments.reports.scores import results
from tests.experiments.reports.conftest import lay, planned


@pytest.mark.parametrize("panels", [1, 2, 3])
@pytest.mark.parametrize("name", experiments.names())
def test_the_legend_fits_into_the_figure(name: str, panels: int) -> None:
    figure, axes = figures._panels(panels)
    for variant in experiments.load(name).variants:
        axes[0].plot([0, 1], label=variant.name)
    figures._legend(figure, axes)
    figure.canvas.draw()
    extent = figure.legends[0].get_window_extent()
    assert extent.x0 >= 0
    assert extent.x1 <= figure.bbox.width
    plt.close(figure)


def test_three_seeds_have_a_band_two_have_a_line_each_and_one_is_alone(tmp_path: Path) -> None:
    seeds = planned(tmp_path, seeds=3, envs=["MinAtar/Breakout-v1"], variants=["StaQ M=1"])
    for seed, returns in zip(seeds, ([1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 5.0], [2.0, 4.0]), strict=True):
        lay(seed, returns, finished=len(returns) == 4)
    curves = results(seeds)["MinAtar/Breakout-v1"]["StaQ M=1"]
    figure, axis = plt.subplots()
    figures._curve(axis, curves, ["StaQ M=1"], "StaQ M=1")
    (band,) = axis.collections
    assert max(path.vertices[:, 0].max() for path in band.get_paths()) == 10_000
    mean, *thin = axis.lines
    np.testing.assert_allclose(mean.get_ydata(), [4 / 3, 8 / 3, 4, 4])
    assert [line.get_xydata().tolist() for line in thin[:2]] == [[[15_000, 3]], [[15_000, 5]]]
    assert np.isnan(thin[2].get_ydata()).all()
    plt.close(figure)
