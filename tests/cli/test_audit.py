"""``staq audit``, ``staq condense`` and ``staq info RUN`` on a run that merges."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from staq import load_policy
from staq.cli import main as cli
from staq.cli.runs import Config
from tests.cli.conftest import train

MERGED = ("--memory-size", "none", "--compression", "merge", "--merge-tolerance", "10", "--keep-snapshots")


@pytest.fixture(scope="module")
def merged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    assert train(str(folder), *MERGED, steps=2400) == 0
    return folder


def test_a_run_is_audited_along_its_way(merged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["audit", str(merged), "--points", "4"]) == 0
    out = capsys.readouterr().out
    rows = json.loads((merged / "audit.json").read_text())
    assert [row["pushes"] for row in rows] == [9, 12]  # at 3 and 6 pushes too few states have been visited
    assert rows[-1]["networks"] < 12
    assert all(0 <= row["mean_kl"] < row["kl_bound"] for row in rows if row["networks"] < row["pushes"])
    assert f"{rows[-1]['networks']} networks for 12 pushes" in out
    assert (merged / "audit.png").stat().st_size > 10_000


def test_several_runs_are_drawn_together_and_rows_outlive_snapshots(
    merged: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert cli.main(["audit", str(merged), "--points", "4"]) == 0
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("config.json", "audit.json"):
        (copy / name).write_text((merged / name).read_text())
    first = capsys.readouterr().out
    assert cli.main(["audit", str(copy), str(copy)]) == 0
    assert first.splitlines()[-1] in capsys.readouterr().out
    assert (tmp_path / "audit.png").stat().st_size > 10_000


def test_info_says_how_a_run_stands(merged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["info", str(merged)]) == 0
    out = capsys.readouterr().out
    for word in ("compression", "staq/networks", "staq/pushes", "staq/merge_kl_bound"):
        assert word in out
    tags = [line.split()[0] for line in out.partition("of its log:\n")[2].splitlines()]
    assert tags == sorted(tags)
    (merged / "model").rename(merged / "elsewhere")
    assert cli.main(["info", str(merged)]) == 0
    assert capsys.readouterr().out.endswith(f"Continue with: staq train --resume {merged}\n")
    (merged / "elsewhere").rename(merged / "model")
    assert cli.main(["info", "nothing"]) == 1
    assert "not a run" in capsys.readouterr().err


def test_a_run_without_snapshots_cannot_be_audited(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["audit", "run"]) == 1
    assert "--keep-snapshots" in capsys.readouterr().err


def test_snapshots_belong_to_a_run(merged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert Config.load(merged).keep_snapshots
    assert cli.main(["train", "--resume", str(merged), "--keep-snapshots"]) == 1
    assert "leave out keep_snapshots" in capsys.readouterr().err
    assert cli.main(["train", "--resume", str(merged), "--timesteps", "2800"]) == 0
    assert len(list((merged / "snapshots").glob("push-*.safetensors"))) == 14


def test_condense_plays_and_exports(merged: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert cli.main(["condense", str(merged), "--networks", "1", "2", "--episodes", "3"]) == 0
    out = capsys.readouterr().out
    assert "1 of " in out
    assert "2 of " in out
    description = load_policy("condensed/networks-2")[1]
    assert description["condensed"]["networks"] == 2
    assert description["environment"] == "CartPole-v1"
    assert (tmp_path / "condensed/condensed.png").exists()
    assert cli.main(["eval", "condensed/networks-1", "--episodes", "2"]) == 0


def test_what_cannot_be_merged_is_said_before_anything_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    assert train("finite", "--compression", "merge") == 1
    assert "Use memory_size=None" in capsys.readouterr().err
    assert train("actor", "--algo", "ac-nokl", *MERGED[2:]) == 1
    assert "belongs to staq, exact-pmd" in capsys.readouterr().err
    assert not Path("finite").exists()
