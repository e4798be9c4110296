"""Runs on this machine: what is lost by a kill, and what by a failure."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from staq.experiments import backends, status
from staq.experiments.record import ERROR
from tests.experiments.conftest import rows_of, tiny


def test_another_configuration_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    backends.prepare(tiny(tmp_path), "")
    with pytest.raises(ValueError, match="another configuration.*name another --out"):
        backends.prepare(tiny(tmp_path, steps=1000), "")


def test_a_failed_run_is_listed_and_stops_no_other(tmp_path: Path) -> None:
    good, bad = tiny(tmp_path, seeds=1), tiny(tmp_path, seeds=1, env="Nowhere-v0")
    runs = [*bad, *good]
    backends.local(backends.prepare(runs, ""), processes=2, report=lambda: None)
    assert [run.state for run in runs] == ["failed", "failed", "finished", "finished"]
    listed = status.failures(runs)
    assert len(listed) == 2
    assert "Nowhere" in listed[0]
    assert "Traceback" in (bad[0].folder / ERROR).read_text()
    # It is tried again, and what was wrong before is forgotten once it works.
    assert len(backends.prepare(runs, "")) == 2


def test_a_worker_that_dies_without_a_word_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by a crash of an environment's own code; and a disk too full to begin with."""
    crashed, unlucky = tiny(tmp_path, seeds=1)
    backends.prepare([crashed, unlucky], "")
    (tmp_path / "sitecustomize.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    with monkeypatch.context() as broken:
        broken.setenv("PYTHONPATH", str(tmp_path))
        assert backends.local([crashed], processes=1, report=lambda: None) == []
    assert crashed.state == "failed"
    assert "The worker ended by signal SIGSEGV" in status.failures([crashed])[0]
    (unlucky.folder / "output.txt").mkdir()
    (problem,) = backends.local([unlucky], processes=1, report=lambda: None)
    assert "output.txt" in problem


def test_what_was_typed_is_kept(tmp_path: Path) -> None:
    (run, *_) = tiny(tmp_path)
    backends.local(backends.prepare([run], "staq experiment run tiny --seeds 1"), processes=1, report=lambda: None)
    assert '"command": "staq experiment run tiny --seeds 1"' in (run.folder / "config.json").read_text()


@pytest.mark.parametrize("how", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_killed_driver_loses_nothing(how: signal.Signals, tmp_path: Path) -> None:
    """In the middle of the first runs. After −9 its workers live on, and the second driver waits for them; SIGTERM ends
    them after their iteration."""
    undisturbed = tiny(tmp_path / "undisturbed", seeds=1, steps=2000)
    backends.local(backends.prepare(undisturbed, ""), processes=2, report=lambda: None)
    script = (
        "import sys; from pathlib import Path; from staq.experiments import backends;"
        "from tests.experiments.conftest import tiny; runs = tiny(Path(sys.argv[1]), seeds=1, steps=2000);"
        "backends.local(backends.prepare(runs, ''), 2, lambda: None)"
    )
    driver = subprocess.Popen([sys.executable, "-c", script, str(tmp_path / "killed")], stderr=subprocess.DEVNULL)
    runs = tiny(tmp_path / "killed", seeds=1, steps=2000)
    deadline = time.monotonic() + 120
    while not all((run.folder / "checkpoints").exists() for run in runs) and time.monotonic() < deadline:
        time.sleep(0.02)
    driver.send_signal(how)
    driver.wait()
    stopped = [run.steps_done for run in runs]
    assert any(run.state != "finished" for run in runs)
    if how == signal.SIGTERM:
        time.sleep(1)
        assert [run.steps_done for run in runs] == stopped, "nobody is at work any more"
    backends.local(backends.prepare(runs, ""), processes=2, report=lambda: None)
    assert {run.state for run in runs} == {"finished"}
    assert rows_of(runs) == rows_of(undisturbed)
