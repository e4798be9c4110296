"""``staq plot``: seeds are joined, kinds told apart, intervals by hand."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import imageio.v2 as imageio
import numpy as np
import pytest

from staq.cli import main as cli
from staq.cli.plot import kind_of, labels_of, seed_curve
from staq.cli.rollouts import Returns
from staq.cli.runs import Config
from tests.cli.conftest import train


def test_plot_joins_seeds_and_tells_kinds_apart(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train("seed6", "--seed", "6") == 0
    assert train("exact", "--memory-size", "none") == 0
    assert train("faster", "--learning-rate", "1e-2") == 0
    assert cli.main(["plot", "run", "seed6", "exact", "faster", "--out", "curves.png"]) == 0
    assert imageio.imread("curves.png").shape[0] > 300
    out = capsys.readouterr().out
    assert re.search(
        r"CartPole-v1  StaQ M=3, learning_rate=0.0001, 2 seeds: [\d.]+ \([\d.]+ and [\d.]+\) at 800 steps\n", out
    )
    assert re.search(r"exact PMD, 1 seed: [\d.]+ at 800 steps", out), "one seed has no interval"
    assert cli.main(["plot", "run", "seed6", "exact", "faster", "--apart", "--out", "apart.png"]) == 0
    assert capsys.readouterr().out.splitlines()[:-1] == out.splitlines()[-4:-1], "the same numbers, in a panel each"
    assert imageio.imread("apart.png").shape[1] > 3 * imageio.imread("apart.png").shape[0]
    config = Config.load(Path("run"))
    whole = replace(config, hyperparameters=config.hyperparameters | {"reward_scale": 10}, actions="factored")
    assert kind_of(whole) == kind_of(config), "what is said twice, or as a whole number, is no other kind"
    kinds = [kind_of(Config.load(Path(name))) for name in ("run", "seed6", "exact", "faster")]
    assert kinds[0] == kinds[1]
    assert labels_of([dict(kinds[0]), dict(kinds[2]), dict(kinds[3])]) == [
        "StaQ M=3, learning_rate=0.0001",
        "exact PMD",
        "StaQ M=3, learning_rate=0.01",
    ]


def test_an_interval_over_seeds_by_hand() -> None:
    """Means 1, 2, 6 at one step: 3 ± 4.303·√7/√3, the t-interval with two degrees of freedom."""
    seeds = [[Returns(10, "greedy", 1, mean, 0.0, mean, 1.0, 0.0)] for mean in (1.0, 2.0, 6.0)]
    curve = seed_curve("three", seeds)
    assert curve.mean.tolist() == [3.0]
    assert curve.half_width is not None
    assert curve.half_width[0] == pytest.approx(4.3027 * np.sqrt(7 / 3), rel=1e-4)
    assert seed_curve("one", seeds[:1]).half_width is None
    assert seed_curve("two", seeds[:2]).half_width is None
    assert seed_curve("two", seeds[:2]).final() == "two, 2 seeds: 1.5 (1.0 and 2.0) at 10 steps"


def test_runs_of_unequal_length_are_said_to_be() -> None:
    long, short = ([Returns(step, "greedy", 1, 1.0, 0.0, 1.0, 1.0, 0.0) for step in steps] for steps in ([1, 2], [1]))
    curve = seed_curve("both", [long, short])
    assert (
        curve.final()
        == "both, 2 seeds: 1.0 (1.0 and 1.0) at 1 steps; the longest has 2, and means end with the shortest"
    )
    assert curve.seeds[0] == {1: 1.0, 2: 1.0}, "and is drawn whole"
