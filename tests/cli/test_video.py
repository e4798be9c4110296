"""Videos with the probabilities of actions beside the game."""

from __future__ import annotations

import imageio.v2 as imageio
import numpy as np
import pytest

from staq.cli import main as cli
from staq.cli import video
from tests.cli.conftest import train


@pytest.mark.parametrize("name", ["video.mp4", "video.gif"])
@pytest.mark.parametrize("env", ["CartPole-v1", "MinAtar/Breakout-v1"])
def test_watch_makes_a_video_with_the_probabilities(name: str, env: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    assert train("run", env=env, steps=200) == 0
    assert cli.main(["watch", "run", "--out", name, "--stochastic"]) == 0
    with imageio.get_reader(name) as reader:
        frame = reader.get_data(0)
    assert frame.shape[0] == 320
    assert frame.shape[1] > 320  # the game and the panel beside it
    assert cli.main(["watch", "run", "--out", "video.png"]) == 1


@pytest.mark.parametrize("sizes", [[13], [35], [60], [2, 101], [7] * 17, [2] * 80], ids=str)
def test_panels_of_any_size_show_the_choice(sizes: list[int]) -> None:
    canvas, left = video._canvas(np.full((64, 64, 3), 255, np.uint8), 1.0)
    names = [[f"action {i}" for i in range(size)] for size in sizes]
    parts = [np.full(size, 1 / size) for size in sizes]
    if len(sizes) == 1:
        video._bars(canvas, left, parts[0], names[0], chosen=sizes[0] - 1)
    else:
        video._strips(canvas, left, parts, names, np.array([size - 1 for size in sizes]))
    panel = np.asarray(canvas)[:, left:]
    orange = (panel[..., 0] > 180) & (panel[..., 2] < 60)
    assert orange.any()
