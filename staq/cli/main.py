"""The entry point of ``staq``: every command, and what is said when one fails."""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
import sysconfig
import traceback
import warnings
from pathlib import Path

from staq.cli import audit, card, condense, evaluate, experiment, info, plot, table, theory, train, tune, watch
from staq.version import __version__


def main(arguments: list[str] | None = None) -> int:
    """Entry point of ``staq``. Expected failures are one line on standard error and exit code 1.

    What the user's own code raises, such as an environment that is being written, keeps its traceback.
    What a signal stopped ends with 128 plus its number, as shells have it, though nothing is lost.
    """
    parser = build_parser()
    words = sys.argv[1:] if arguments is None else arguments
    options, rest = parser.parse_known_args(words)
    options.line = shlex.join(["staq", *words])
    try:
        if rest:
            raise ValueError(train.unrecognised(rest))
        with warnings.catch_warnings():
            said: set[str] = set()
            warnings.showwarning = lambda message, *_, **__: _say_once(str(message), said)
            return options.command(options) or 0
    except KeyboardInterrupt as stop:
        print("staq: stopped; what was saved is intact.", file=sys.stderr)
        return 128 + (stop.args[0] if stop.args else signal.SIGINT)
    except (ValueError, TypeError, OSError, ModuleNotFoundError, FloatingPointError) as error:
        if isinstance(error, (ValueError, TypeError)) and _of_own_code(error):
            raise
        print(f"staq: {error}", file=sys.stderr)
        return 1


def _of_own_code(error: Exception) -> bool:
    """Whether it went through code that is neither ours, nor Python's, nor of an installed package."""
    known = (str(Path(__file__).parents[1]), sysconfig.get_path("stdlib"), "<")
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    installed = ("site-packages", "dist-packages")
    return any(not file.startswith(known) and not any(name in file for name in installed) for file in files)


def _say_once(warning: str, said: set[str]) -> None:
    """Many iterations, environments and parts of a run may have the same to say."""
    if warning not in said:
        print(f"staq: {warning}", file=sys.stderr)
    said.add(warning)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="staq", description="Exact policy mirror descent.")
    parser.add_argument("--version", action="version", version=f"staq {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for module in (train, tune, evaluate, watch, plot, table, audit, condense, card, experiment, theory, info):
        module.add_command(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
