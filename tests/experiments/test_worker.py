"""One run in a process of its own: killed, stopped, out of disk."""

from __future__ import annotations

import shutil
import signal
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from staq.baselines import sb3_policy
from staq.experiments import backends, status, worker
from staq.experiments import plans as experiments
from staq.experiments.record import Planned, plan
from staq.storage import checkpoint
from tests.experiments.conftest import rows_of, tiny


@pytest.mark.parametrize("algo", ["staq", "ppo"])
def test_a_run_killed_just_before_its_end_ends(algo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (run,) = plan(experiments.load("deep-rl"), tmp_path, 0.001, 1, ["CartPole-v1"], [algo], eval_episodes=1)
    if algo == "staq":
        run = tiny(tmp_path, seeds=1)[0]
    backends.prepare([run], "")
    monkeypatch.setattr(sys, "argv", ["worker", str(run.folder)])
    with monkeypatch.context() as killed:
        killed.setattr(worker, "replace_text", lambda path, text: sys.exit(9))
        with pytest.raises(SystemExit):
            worker.main()
    rows = rows_of([run])
    assert rows[0]
    assert run.state == "begun"
    assert worker.main() == 0
    assert run.state == "finished"
    assert rows_of([run]) == rows
    assert not (run.folder / "checkpoints").exists(), "nothing will resume it"


@pytest.mark.parametrize("full_from", [1, 3])
def test_a_full_disk_is_named_and_loses_nothing(
    full_from: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the first checkpoint, right after an evaluation, and with a later one."""

    def run(folder: Path) -> Planned:
        planned = replace(tiny(folder)[0], config=replace(tiny(folder)[0].config, eval_every=200))
        backends.prepare([planned], "")
        return planned

    def work(planned: Planned) -> int:
        monkeypatch.setattr(sys, "argv", ["worker", str(planned.folder)])
        return worker.main()

    undisturbed, disturbed = run(tmp_path / "undisturbed"), run(tmp_path / "disturbed")
    assert work(undisturbed) == 0
    write = checkpoint.write_atomically

    def full(path: Path, content: dict[str, Any]) -> None:
        if f"state-{full_from:06d}" in path.name:
            raise OSError(28, "No space left on device")
        write(path, content)

    with monkeypatch.context() as disk:
        disk.setattr(checkpoint, "write_atomically", full)
        assert work(disturbed) == 1
    assert "No space left on device" in status.failures([disturbed])[0]
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=3e6))
    assert "Only 3 MB are left" in "".join(status.stopped([disturbed], tmp_path))
    assert work(disturbed) == 0
    assert rows_of([disturbed]) == rows_of([undisturbed])


def test_a_baseline_that_could_not_be_saved_is_not_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (run,) = plan(experiments.load("deep-rl"), tmp_path, 0.001, 1, ["CartPole-v1"], ["ppo"], eval_episodes=1)
    run = replace(run, config=replace(run.config, timesteps=2048))
    backends.prepare([run], "")
    write = sb3_policy.write_atomically

    def full(path: Path, content: dict[str, Any]) -> None:
        if path.name == sb3_policy.PARAMETERS:
            raise OSError(28, "No space left on device")
        write(path, content)

    monkeypatch.setattr(sys, "argv", ["worker", str(run.folder)])
    with monkeypatch.context() as disk:
        disk.setattr(sb3_policy, "write_atomically", full)
        assert worker.main() == 1
    assert run.state == "failed"
    assert worker.main() == 0
    assert run.state == "finished"


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM, signal.SIGSEGV])
def test_a_worker_that_is_stopped_before_it_listens_has_not_failed(
    signal_number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a worker that crashes has."""
    (run,) = tiny(tmp_path, seeds=1)[:1]
    backends.prepare([run], "")
    stub = tmp_path / "stub.sh"
    stub.write_text(f"#!/bin/sh\nkill -{signal_number.value} $$\n")
    stub.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(stub))
    assert worker.run_in_process(str(run.folder), 1, timed=False) == -signal_number
    assert run.state == ("failed" if signal_number == signal.SIGSEGV else "begun")
