"""Luck of policies that hold their actions."""

from __future__ import annotations

from pathlib import Path

from staq.experiments import random_policy


def test_the_share_that_reaches_the_goal_grows_with_held_actions_and_is_counted_once(tmp_path: Path) -> None:
    """A uniform policy hardly ever leaves MountainCar's valley in 200 steps; one that holds its actions does."""
    said: list[str] = []
    assert (
        random_policy.seconds_left([20, 40], 20_000, tmp_path)
        == 1.5 * random_policy.seconds_left([20], 20_000, tmp_path)
        > 0
    )
    assert random_policy.seconds_left([], 20_000, tmp_path) == 0
    random_policy.count("MountainCar-v0", [20], 20_000, tmp_path, said.append)
    counts = random_policy.read(tmp_path)
    assert list(counts) == ["none", "20"]
    assert counts["none"][1] == 0
    assert counts["20"][1] > 0
    assert counts["20"][2] >= 100
    assert random_policy.seconds_left([20], 20_000, tmp_path) == 0
    random_policy.count("MountainCar-v0", [20], 20_000, tmp_path, said.append)
    assert len(said) == 2
