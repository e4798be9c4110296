"""The entry point of ``staq``: every command, and what is said when one fails."""

from __future__ import annotations

import argparse
import shlex
import sys
import warnings

from staq.cli import audit, condense, evaluate, experiment, info, plot, table, theory, train, watch
from staq.version import __version__


def main(arguments: list[str] | None = None) -> int:
    """Entry point of ``staq``. Expected failures are one line on standard error and exit code 1."""
    parser = build_parser()
    words = sys.argv[1:] if arguments is None else arguments
    options, rest = parser.parse_known_args(words)
    options.line = shlex.join(["staq", *words])
    try:
        if rest:
            raise ValueError(train.unrecognised(rest))
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_, **__: print(f"staq: {message}", file=sys.stderr)
            options.command(options)
    except KeyboardInterrupt:
        print("staq: stopped; what was saved is intact.", file=sys.stderr)
        return 130
    except (ValueError, TypeError, OSError, ModuleNotFoundError, FloatingPointError) as error:
        print(f"staq: {error}", file=sys.stderr)
        return 1
    return 0


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="staq", description="Exact policy mirror descent.")
    parser.add_argument("--version", action="version", version=f"staq {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for module in (train, evaluate, watch, plot, table, audit, condense, experiment, theory, info):
        module.add_command(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
