"""Where runs are run: on this machine, on a Ray cluster, or through SLURM. All of them call the same worker."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any

from tqdm import tqdm

from staq.experiments.record import Planned
from staq.experiments.worker import AT_WORK, run_in_process

Report = Callable[[], None]
"""Called now and then, to show progress."""
PATIENCE = 5.0
"""Seconds between two looks at runs that are elsewhere."""
JOB = "job.txt"
"""In a run's folder: the SLURM job that was last submitted for it."""
UNDER_WAY = ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "REQUEUED", "SUSPENDED")
"""Of SLURM's states those from which a job still comes to its end by itself."""


def check(runs: Sequence[Planned]) -> None:
    """Raises if what lies in a run's folder is of another kind."""
    for run in runs:
        if run.config_differs:
            raise ValueError(
                f"{run.folder} was begun with another configuration, such as another --budget, and rows of two kinds "
                "must not meet: name another --out."
            )


def prepare(runs: Sequence[Planned], command: str) -> list[Planned]:
    """Writes the configuration of every run that has none yet, and returns those that are not finished."""
    check(runs)
    for run in runs:
        if not run.configured:
            run.folder.mkdir(parents=True, exist_ok=True)
            run.config.save(run.folder, command)
    return [run for run in runs if run.state != "finished"]


def local(runs: Sequence[Planned], processes: int, report: Report) -> list[str]:
    """So many processes side by side, of one thread each.

    SIGTERM stops it as Ctrl-C does, which reaches the workers by itself: each ends its iteration first.

    :return: what went wrong outside of the runs, such as a disk too full to begin one
    """

    def stop(number: int, frame: FrameType | None) -> None:
        for child in list(AT_WORK):
            child.terminate()
        raise KeyboardInterrupt(number)

    before = signal.signal(signal.SIGTERM, stop)
    with ThreadPoolExecutor(processes) as pool:
        waiting = [pool.submit(run_in_process, str(run.folder), run.config.threads, run.timed) for run in runs]
        try:
            while not all(future.done() for future in waiting):
                time.sleep(PATIENCE / 5)
                report()
        except BaseException:
            for future in waiting:
                future.cancel()
            tqdm.write(
                "\nStopping when every run has ended its iteration, with a checkpoint. Ctrl-C again stops at once."
            )
            raise
        finally:
            signal.signal(signal.SIGTERM, before)
    return sorted({str(error) for future in waiting if (error := future.exception()) is not None})


def ray(runs: Sequence[Planned], address: str | None, cpus: float, gpus: float, report: Report) -> list[str]:
    """On an existing cluster, or on one that is started here. A run whose node dies resumes on another.

    The folder of the experiment must be one that all nodes share.

    :return: what went wrong outside of the runs, such as a node without this library
    """
    # Where something else than Ray answers, its twenty tries would take a quarter of an hour; one takes 40 seconds.
    os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", "1")
    try:
        import ray as cluster
    except ImportError as error:
        raise ModuleNotFoundError("Ray is not installed: pip install 'staq[distributed]'") from error
    if address is None:
        # "local", or it would join whatever cluster was last started on this machine.
        cluster.init("local", log_to_driver=False, include_dashboard=False, _node_ip_address="127.0.0.1")
    else:
        _check_that_someone_answers(address)
        cluster.init(address=address, log_to_driver=False)
    problems = set()
    try:
        _check_that_a_run_fits([node["Resources"] for node in cluster.nodes() if node["Alive"]], cpus, gpus)
    except ValueError:
        cluster.shutdown()
        raise
    remote = cluster.remote(num_cpus=cpus, num_gpus=gpus, max_retries=-1)(run_in_process)
    waiting: list[Any] = [remote.remote(str(run.folder.resolve()), run.config.threads, run.timed) for run in runs]
    try:
        while waiting:
            ended, waiting = cluster.wait(waiting, num_returns=len(waiting), timeout=PATIENCE)
            for run in ended:
                try:
                    cluster.get(run)
                except cluster.exceptions.RayError as error:
                    problems.add(f"Ray: {str(error).strip().splitlines()[-1]}")
            report()
    finally:
        cluster.shutdown()
    return sorted(problems)


def _check_that_a_run_fits(nodes: Sequence[dict[str, float]], cpus: float, gpus: float) -> None:
    """Ray would wait for a node that is large enough forever, without a word."""
    if not any(cpus <= node.get("CPU", 0) and gpus <= node.get("GPU", 0) for node in nodes):
        there = ", ".join(f"{node.get('CPU', 0):g} CPUs and {node.get('GPU', 0):g} GPUs" for node in nodes)
        raise ValueError(f"A run asks for {cpus:g} CPUs and {gpus:g} GPUs of one node, and the nodes have: {there}.")


def _check_that_someone_answers(address: str) -> None:
    """Ray itself would try for minutes, and say so in its own words."""
    host, _, port = address.removeprefix("ray://").partition(":")
    if not port.isdigit():
        raise ValueError(f"--address {address}: it must be HOST:PORT, as ray start --head prints it.")
    try:
        socket.create_connection((host, int(port)), timeout=PATIENCE).close()
    except OSError as error:
        raise ConnectionError(
            f"No Ray cluster answers at {address} ({error}). Start one with: ray start --head"
        ) from error


class Requeued:
    """A run as a job that goes on as another when its time is up, from its checkpoint."""

    def __call__(self, folder: str, threads: int, timed: bool) -> int:
        return run_in_process(folder, threads, timed)

    def checkpoint(self, *arguments: Any) -> Any:
        """What submitit asks for when SLURM ends the job."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, *arguments)


def slurm(
    runs: Sequence[Planned],
    folder: Path,
    partition: str | None,
    hours: float,
    cpus: int,
    gpus: float,
    cluster: str = "slurm",
) -> list[Any]:
    """One job array, submitted and left to itself. → the jobs

    A run whose job is still in the queue is not submitted again.

    :param cluster: "slurm", or submitit's "local" and "debug" for a machine without it
    """
    try:
        import submitit
    except ImportError as error:
        raise ModuleNotFoundError("submitit is not installed: pip install 'staq[distributed]'") from error
    if gpus != int(gpus):
        raise ValueError(f"--gpus {gpus:g}: SLURM gives whole GPUs only.")
    try:
        executor = submitit.AutoExecutor(folder=folder / "slurm", cluster=cluster)
    except RuntimeError as error:
        raise OSError(f"SLURM does not answer on this machine ({error}): submit from a login node.") from error
    executor.update_parameters(timeout_min=round(60 * hours), cpus_per_task=cpus, gpus_per_node=int(gpus), name="staq")
    if partition is not None:
        executor.update_parameters(slurm_partition=partition)
    # All of them first, then their states: submitit asks SLURM once for all that it knows of.
    earlier = {
        run.folder: submitit.SlurmJob[int](folder / "slurm", (run.folder / JOB).read_text())
        for run in runs
        if (run.folder / JOB).exists()
    }
    runs = [run for run in runs if run.folder not in earlier or earlier[run.folder].state not in UNDER_WAY]
    if not runs:
        return []
    jobs = executor.map_array(
        Requeued(),
        [str(run.folder.resolve()) for run in runs],
        [run.config.threads for run in runs],
        [run.timed for run in runs],
    )
    for run, job in zip(runs, jobs, strict=True):
        (run.folder / JOB).write_text(job.job_id)
    return list(jobs)
