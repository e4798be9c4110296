"""The page says what was run, what was found and what is missing."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

import pytest

from staq.experiments import plans as experiments
from staq.experiments.record import plan
from staq.experiments.reports import write
from tests.experiments.reports.conftest import lay, planned


def test_the_page_says_what_was_run_and_what_was_not(tmp_path: Path) -> None:
    for run in planned(tmp_path):
        lay(run, [1.0, 2.0, 3.0, 30.0 if run.variant == "StaQ M=50" else 3.5])
    (stranger, *_) = planned(tmp_path, budget=0.008, seeds="3-3")
    lay(stranger, [9.0] * 8)
    runs = planned(tmp_path, seeds=4)
    page = write(experiments.load("memory"), runs, tmp_path, progress=lambda: None).read_text()
    assert "20,000 environment steps (0.40% of 5,000,000 in full) and 4 of 20 seeds. 12 of 16 runs" in page
    assert f"another configuration: {html.escape(str(stranger.folder))}" in page
    assert "30 [30, 30]" in page
    assert "MinAtar/Breakout-v1 0.38 to 44" in page
    assert "<td>confirmed" not in page, "at this budget nothing is decided"
    assert "20,000 steps, and it takes 2,500,000 at least" in page
    assert "&quot;memory_size&quot;: 50" in page
    names = {path.name for path in (tmp_path / "report").glob("*.svg")}
    assert names == {
        f"{n}.svg" for n in ("learning_curves", "final_boxes", "aggregate", "aggregate_curves", "profiles")
    }


def test_the_papers_numbers_stand_beside_ours(tmp_path: Path) -> None:
    part: dict[str, Any] = {"seeds": 1, "envs": ["MinAtar/Seaquest-v1"], "variants": ["dqn"]}
    runs = plan(experiments.load("deep-rl"), tmp_path, budget=0.004, **part)
    lay(runs[0], [1.0, 2.0, 3.0, 4.5])
    page = write(experiments.load("deep-rl"), runs, tmp_path, progress=lambda: None).read_text()
    cells = re.findall(r"<td[^>]*>([^<]*)</td>", page[page.index("Final returns") :])
    assert cells[:7] == ["MinAtar/Seaquest-v1", "DQN", "4.5", "3.75", "1", "16", "0.09"]


def test_returns_against_minutes(tmp_path: Path) -> None:
    """The last evaluation until a minute; what has not come so far has none."""
    experiment = experiments.load("minutes")
    some: dict[str, Any] = {"envs": ["CartPole-v1"], "variants": ["PQN", "PPO"], "seeds": 2}
    for run in plan(experiment, tmp_path, **some):
        n, per_step = (20, 300) if run.variant == "PQN" else (10, 200)  # five minutes and ten seconds, or 100 s
        seconds = per_step / 20 / run.config.eval_every * (31 / 30)
        lay(run, [10.0 * (1 + i) + run.config.seed for i in range(n)], core_seconds=seconds)
    page = write(experiment, plan(experiment, tmp_path, **some), tmp_path, progress=lambda: None).read_text()
    cells = re.findall(r"<td[^>]*>([^<]*)</td>", page)
    assert cells[:3] == ["CartPole-v1", "PQN", "30.5 [24.1, 36.9]"], "the third of 20"
    assert cells[3].startswith("190")
    assert cells[4:8] == ["CartPole-v1", "PPO", "50.5 [44.1, 56.9]", "–"]
    assert (tmp_path / "report" / "minutes.svg").exists()


def test_nothing_to_report_is_said(tmp_path: Path) -> None:
    runs = planned(tmp_path, seeds=1)
    lay(runs[0], [])
    with pytest.raises(ValueError, match="has been evaluated yet"):
        write(experiments.load("memory"), runs, tmp_path, progress=lambda: None)


def test_bodies_without_a_scale_are_not_called_unfinished(tmp_path: Path) -> None:
    runs = plan(experiments.load("mujoco"), tmp_path, budget=0.001, seeds=1, envs=["Ant-v4"])
    for run in runs:
        lay(run, [1.0])
    page = write(experiments.load("mujoco"), runs, tmp_path, progress=lambda: None).read_text()
    assert "no scale to aggregate them on" in page
