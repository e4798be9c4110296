"""``staq table``: numbers worked by hand from rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from staq.cli import presets
from staq.cli.main import main
from staq.cli.plot import kind_of, labels_of
from staq.cli.rollouts import Returns, write_rows
from staq.cli.runs import Config, configured


def make_run(
    folder: Path, seed: int, returns: list[float], abs_q: list[float] | None = None, env: str = "CartPole-v1"
) -> str:
    folder.mkdir()
    Config(env, "MlpPolicy", {}, "classic", 4000, seed, 50, 1000, 10, 1).save(folder, "")
    rows = [(1000 * (i + 1), value) for i, value in enumerate(returns)]
    write_rows(
        folder, [Returns(t, mode, 10, v, 0.0, v, 1.0, 1.0) for t, v in rows for mode in ("greedy", "stochastic")]
    )
    if abs_q is not None:
        (folder / "progress.csv").write_text("\n".join(["staq/mean_abs_q", *map(str, abs_q)]) + "\n")
    return str(folder)


def test_by_hand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = make_run(tmp_path / "a", 1, [100, 480, 200, 500], [3.0, 9.0, 1.0])
    second = make_run(tmp_path / "b", 0, [10, 20, 30, 40], [2.0, 4.0, 6.0])
    words = ["--threshold", "475", "--quantity", "staq/mean_abs_q", "--quantity", "mean:staq/mean_abs_q"]
    assert main(["table", first, second, *words]) == 0
    header, _, line = capsys.readouterr().out.splitlines()
    assert header.split(" | ")[1:3] == ["greedy at 4,000", "best"]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells == [
        *("StaQ M=300", "40, 500", "40, 500", "15, 290", "35, 350"),  # seeds in order, by halves
        *("never, 2k", "0 of 0, 2 of 3", "6, 9", "4, 4.333"),
    ]


@pytest.mark.parametrize(("part", "mean"), [("0.5", "30"), ("0.01", "40"), ("1", "25")])
def test_the_last_part_of_a_run(part: str, mean: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """At 1k, 2k, 3k and 4k steps: the last half begins at 2k, and the last evaluation always counts."""
    assert main(["table", make_run(tmp_path / "a", 0, [10, 20, 30, 40]), "--last", part]) == 0
    header, _, line = capsys.readouterr().out.splitlines()
    assert f"mean, last {float(part):.0%}" in header
    assert line.strip("|").split("|")[-1].strip() == mean


def test_environments_have_tables_of_their_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [make_run(tmp_path / env, 0, [1.0], env=env) for env in ("CartPole-v1", "Acrobot-v1")]
    assert main(["table", *runs, "--quantity", "staq/mean_abs_q"]) == 0
    out = capsys.readouterr().out
    assert out.count("|---") == 2 * 6
    assert "| – |" in out  # nothing was logged


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--quantity", "most:staq/mean_abs_q"], "'most' is none of largest"),
        (["--quantity", "staq/mean_q"], "no run has logged 'staq/mean_q'. Did you mean 'staq/mean_abs_q'?"),
        (["--mode", "stochastic"], ""),
    ],
)
def test_bad_input(words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "a", 0, [1.0, 2.0], [1.0])
    assert main(["table", run, *words]) == (1 if message else 0)
    assert message in capsys.readouterr().err
    assert main(["table", str(tmp_path)]) == 1
    assert "is not a run" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--last", "5"], ["--last", "0"], ["--threshold", "high"]])
def test_bad_numbers(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["table", "run", *words])
    assert f"argument {words[0]}: '{words[1]}' is no " in capsys.readouterr().err


def test_a_quantity_that_one_run_alone_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Algorithms log different things: a dash for who has it not."""
    first, second = make_run(tmp_path / "a", 0, [1.0], [3.0]), make_run(tmp_path / "b", 1, [1.0])
    (tmp_path / "b/progress.csv").write_text("staq/actor_loss\n2.0\n")
    assert main(["table", first, second, "--quantity", "staq/actor_loss"]) == 0
    assert "| –, 2 |" in capsys.readouterr().out


def test_evaluations_are_told_apart_by_their_name() -> None:
    """And a memory that nobody named is the evaluation's own."""
    fast = {"evaluation": "lambda", "memory_size": 300}
    kinds = []
    for own in ({}, {"evaluation": "lambda"}, fast, fast | {"n_epochs": 7}):
        preset = presets.for_environment("CartPole-v1", evaluation=str(own.get("evaluation", "replay")))
        kinds.append(dict(kind_of(configured("CartPole-v1", preset, overrides=own))))
    assert labels_of(kinds) == [
        "StaQ M=300, evaluation=replay",
        "StaQ M=1",
        "StaQ M=300, evaluation=lambda, n_epochs=4",
        "StaQ M=300, evaluation=lambda, n_epochs=7",
    ]
