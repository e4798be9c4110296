"""Backends of clusters: the same rows from Ray and from SLURM as from this machine; clear words where there is none."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from staq.experiments import backends
from tests.experiments.conftest import rows_of, tiny

os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # read on import: nodes talk over the loopback address alone
ray = pytest.importorskip("ray")
submitit = pytest.importorskip("submitit")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Ray leaves a token in the home folder."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    (tmp_path / "home").mkdir()
    yield
    ray.shutdown()


@pytest.mark.slow
@pytest.mark.usefixtures("home")
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_a_node_killed_in_mid_run_changes_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ray.cluster_utils import Cluster

    monkeypatch.setattr(backends, "PATIENCE", 0.2)
    undisturbed = tiny(tmp_path / "local", seeds=3, steps=2000)
    backends.local(backends.prepare(undisturbed, ""), processes=2, report=lambda: None)
    cluster: Any = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    doomed = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    runs = tiny(tmp_path / "ray", seeds=3, steps=2000)
    killed: list[float] = []

    def kill_when_both_are_busy() -> None:
        # A finished run has none any more.
        if not killed and sum((run.folder / "checkpoints").exists() for run in runs) >= 2:
            cluster.remove_node(doomed, allow_graceful=False)
            killed.append(time.monotonic())

    try:
        left = backends.prepare(runs, "")
        backends.ray(left, cluster.address, cpus=1, gpus=0, report=kill_when_both_are_busy)
    finally:
        cluster.shutdown()
    assert killed
    assert {run.state for run in runs} == {"finished"}
    assert rows_of(runs) == rows_of(undisturbed)


DRIVER = (
    "import sys; from pathlib import Path; from staq.experiments import backends;"
    "from tests.experiments.conftest import tiny;"
    "left = backends.prepare(tiny(Path(sys.argv[1]), seeds=1, steps=4000), '');"
    "backends.ray(left, sys.argv[2], cpus=1, gpus=0, report=lambda: None)"
)


@pytest.mark.slow
@pytest.mark.usefixtures("home")
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_a_killed_driver_of_a_cluster_loses_nothing(tmp_path: Path) -> None:
    """−9 in mid-run, on a cluster that goes on; then the same again."""
    from ray.cluster_utils import Cluster

    undisturbed = tiny(tmp_path / "local", seeds=1, steps=4000)
    backends.local(backends.prepare(undisturbed, ""), processes=2, report=lambda: None)
    cluster: Any = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    runs = tiny(tmp_path / "ray", seeds=1, steps=4000)
    try:
        driver = subprocess.Popen([sys.executable, "-c", DRIVER, str(tmp_path / "ray"), cluster.address])
        deadline = time.monotonic() + 120
        while not any((run.folder / "checkpoints").exists() for run in runs) and time.monotonic() < deadline:
            time.sleep(0.05)
        driver.kill()
        driver.wait()
        assert {run.state for run in runs} == {"begun"}
        backends.ray(backends.prepare(runs, ""), cluster.address, cpus=1, gpus=0, report=lambda: None)
    finally:
        cluster.shutdown()
    assert {run.state for run in runs} == {"finished"}
    assert rows_of(runs) == rows_of(undisturbed)


def test_an_unreachable_cluster_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConnectionError, match=r"No Ray cluster answers at 127.0.0.1:1.*ray start --head"):
        backends.ray(tiny(tmp_path), "127.0.0.1:1", cpus=1, gpus=0, report=lambda: None)
    with pytest.raises(ValueError, match="--address here: it must be HOST:PORT"):
        backends.ray(tiny(tmp_path), "here", cpus=1, gpus=0, report=lambda: None)


def test_without_slurm_the_user_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(OSError, match="SLURM does not answer on this machine"):
        backends.slurm(tiny(tmp_path), tmp_path, None, hours=1, cpus=1, gpus=0)


@pytest.mark.slow
def test_submitits_local_executor_gives_the_same_rows(tmp_path: Path) -> None:
    expected, runs = tiny(tmp_path / "local", seeds=1), tiny(tmp_path / "jobs", seeds=1)
    backends.local(backends.prepare(expected, ""), processes=2, report=lambda: None)
    left = backends.prepare(runs, "")
    jobs = backends.slurm(left, tmp_path, None, hours=0.1, cpus=1, gpus=0, cluster="local")
    assert [job.result() for job in jobs] == [0, 0]
    assert rows_of(runs) == rows_of(expected)


@pytest.fixture
def a_slurm_of_scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Commands of SLURM's names: sbatch keeps the script as job 77, sacct prints what a test puts into ``states``."""
    commands = tmp_path / "bin"
    commands.mkdir()
    sbatch = f"cp $1 {tmp_path}/script; echo job 77"
    for name, text in (("srun", "exit 0"), ("sbatch", sbatch), ("sacct", f"cat {tmp_path}/states")):
        (commands / name).write_text(f"#!/bin/sh\n{text}\n")
        (commands / name).chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")
    return tmp_path


def test_the_slurm_script(a_slurm_of_scripts: Path) -> None:
    """One array, the limits asked for, the worker's pickled calls."""
    runs = tiny(a_slurm_of_scripts / "runs")
    jobs = backends.slurm(backends.prepare(runs, ""), a_slurm_of_scripts, "long", hours=3, cpus=2, gpus=1)
    assert [job.job_id for job in jobs] == ["77_0", "77_1", "77_2", "77_3"]
    script = (a_slurm_of_scripts / "script").read_text()
    for line in ("--array=0-3", "--partition=long", "--time=180", "--cpus-per-task=2", "--gpus-per-node=1"):
        assert f"#SBATCH {line}" in script, line


def test_what_waits_in_slurms_queue_is_not_submitted_again(a_slurm_of_scripts: Path) -> None:
    def submit() -> int:
        submitit.SlurmJob.watcher.clear()
        return len(backends.slurm(runs, a_slurm_of_scripts, None, hours=1, cpus=1, gpus=0))

    runs = backends.prepare(tiny(a_slurm_of_scripts / "runs"), "")
    states = a_slurm_of_scripts / "states"
    assert submit() == 4
    states.write_text("JobID|State|NodeList\n77_0|RUNNING|a\n77_1|TIMEOUT|a\n77_[2-3]|PENDING|\n")
    assert submit() == 1
    assert "--array" not in (a_slurm_of_scripts / "script").read_text()
    (runs[1].folder / backends.JOB).write_text("77_1")
    states.write_text("JobID|State|NodeList\n77_[0-3]|PENDING|\n")
    assert submit() == 0
    states.write_text("")  # a SLURM that keeps no accounts
    assert submit() == 4


def test_a_job_whose_time_is_up_goes_on_as_another() -> None:
    again = backends.Requeued().checkpoint("folder", 1, False)
    assert isinstance(again.function, backends.Requeued)
    assert again.args == ("folder", 1, False)


def test_half_a_gpu_is_refused_by_slurm(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--gpus 0.5"):
        backends.slurm([], tmp_path, None, hours=1, cpus=1, gpus=0.5)


@pytest.mark.parametrize(("cpus", "gpus"), [(9, 0), (3, 0), (1, 1), (2, 0.5)])
def test_what_no_single_node_has_is_named(cpus: float, gpus: float) -> None:
    with pytest.raises(ValueError, match=f"asks for {cpus} CPUs and {gpus:g} GPUs of one node.*2 CPUs and 0 GPUs"):
        backends._check_that_a_run_fits([{"CPU": 2.0}, {"CPU": 1.0, "GPU": 0.5}], cpus, gpus)
    backends._check_that_a_run_fits([{"CPU": 2.0}, {"CPU": 1.0, "GPU": 0.5}], 1, 0.5)
