"""One run of an experiment, in a process of its own: begun, resumed or found finished.

    python -m staq.experiments.worker FOLDER [timed]

The folder holds the run's configuration, which is trained, or only timed. Every backend runs this and nothing else, so
that a run gives the same rows wherever it is run.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import traceback
from datetime import UTC, datetime
from pathlib import Path

from staq.cli.runs import Config
from staq.experiments.record import ERROR, FINISHED, OUTPUT, TIMING
from staq.storage.atomic_files import locked, replace_text

STOPPED = (2, -signal.SIGINT, -signal.SIGTERM)
"""Exit codes of a worker that was asked to stop: after its iteration, or before it could listen."""
AT_WORK: set[subprocess.Popen[bytes]] = set()
"""The workers of this process."""


def main() -> int:
    from staq.cli import runs
    from staq.experiments import timing

    folder, timed = Path(sys.argv[1]), "timed" in sys.argv[2:]
    try:
        with locked(folder / ".lock", wait=True):  # for a worker whose driver was killed
            if (folder / (TIMING if timed else FINISHED)).exists():
                return 0
            (folder / ERROR).unlink(missing_ok=True)
            if timed:
                found = timing.of_run(Config.load(folder))
                replace_text(folder / TIMING, json.dumps(found, indent=1) + "\n")
                return 0
            command = json.loads((folder / "config.json").read_text())["command"]
            _, stopped = runs.train(Config.load(folder), folder, command, resuming=True)
            if not stopped:
                replace_text(folder / FINISHED, f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC\n")
                # Of hundreds of runs they would fill the disk, and nothing resumes any more.
                shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    except Exception:  # whatever it was, the other runs go on, and this one is listed
        with contextlib.suppress(OSError):  # no room even for this
            replace_text(folder / ERROR, traceback.format_exc())
        return 1
    return 2 if stopped else 0


def run_in_process(folder: str, threads: int, timed: bool) -> int:
    """The worker as a child, with its output beside the run. → its exit code"""
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    error, output = Path(folder) / ERROR, Path(folder) / OUTPUT
    with output.open("a") as file:
        command = [sys.executable, "-m", "staq.experiments.worker", folder, *["timed"] * timed]
        with subprocess.Popen(command, stdout=file, stderr=file, env=environment) as child:
            AT_WORK.add(child)
            try:
                code = child.wait()
            finally:
                AT_WORK.discard(child)
    if code != 0 and code not in STOPPED and not error.exists():
        # It could not say so itself: a crash of the environment's own code, or too little memory.
        cause = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        replace_text(error, f"The worker ended by {cause}; its last words are in {output}.\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
