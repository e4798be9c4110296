"""``staq theory``: the audit, the study of averaging, the pictures."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from staq.cli import main as cli
from staq.tabular import averaging
from staq.tabular.grids import pendulum


def test_theory_check_prints_saves_and_reruns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main("theory check --trials 60 --seed 0 --processes 1 --json audit.json".split()) == 0
    saved = json.loads(Path("audit.json").read_text())
    rows = {row["statement"]: row for row in saved["statements"]}
    lemma = rows["Lemma 4.3"]
    assert lemma["trials"] == 60
    assert lemma["violations_as_stated"] > lemma["violations_as_repaired"] == 0
    assert rows["Lemma 4.1"]["violations_as_repaired"] is None
    assert "Theorem 5.1" in capsys.readouterr().out
    rerun = lemma["smallest_counterexample"].split("staq ")[1].split()
    assert cli.main(rerun) == 0
    out = capsys.readouterr().out
    assert re.search(r"Lemma 4.3 +violated as stated .*holds as repaired", out)


def test_theory_averaging_goes_on_after_an_interruption(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(averaging, "ENVIRONMENTS", {"pendulum": lambda: pendulum(6)})
    monkeypatch.setattr(averaging, "MEMORIES", (2, 3))
    monkeypatch.setattr(averaging, "SMOOTHING", 2)
    monkeypatch.setattr(averaging, "scaled_to", lambda budget: (2, 8))
    fit, iterate = averaging.FittedQ.fit, averaging.Study.iterate
    monkeypatch.setattr(averaging.FittedQ, "fit", lambda networks, targets, steps: fit(networks, targets, 3))

    def stopped_at_five(study: averaging.Study) -> None:
        if study.iteration == 5:
            raise KeyboardInterrupt
        iterate(study)

    words = "theory averaging --envs pendulum --out averaging".split()
    with monkeypatch.context() as interruption:
        interruption.setattr(averaging.Study, "iterate", stopped_at_five)
        assert cli.main(words) == 130
    assert cli.main(words) == 0
    assert "62%" in capsys.readouterr().err, "it went on after the fifth of eight iterations"
    assert sorted(path.name for path in Path("averaging").iterdir()) == ["averaging.png", "pendulum.csv"]
    assert {row.iteration for row in averaging.read(Path("averaging/pendulum.csv"))} == set(range(2, 9))


@pytest.mark.slow
def test_theory_plot_draws_every_picture(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["theory", "plot", "--out", "pictures"]) == 0
    names = {path.stem for path in Path("pictures").glob("*.png")}
    assert names == {"bound", "trade-off", "update", "memory", "rate", "threshold"}
