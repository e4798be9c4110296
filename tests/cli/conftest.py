"""Runs of the command line, small and in a folder of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from staq.cli import main as cli

FAST = (
    "--policy-update-interval 200 --batch-size 32 --buffer-size 500 --memory-size 3 --target-update-interval 50 "
    "--policy-kwargs {net_arch=[16]} --n-envs 4 --eval-episodes 2 --threads 1 --seed 5"
).split()


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def train(out: str, *arguments: str, env: str = "CartPole-v1", steps: int = 1000) -> int:
    options = ["train", env, "--timesteps", str(steps), "--eval-every", "400", "--out", out]
    return cli.main([*options, *FAST, *arguments])


@pytest.fixture
def run(tmp_path: Path) -> Path:
    assert train("run") == 0
    return tmp_path / "run"
