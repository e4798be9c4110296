"""``python -m staq.zoo COMMAND``: RL Zoo's own command line, where our algorithms are known."""

from __future__ import annotations

import sys

from staq.zoo import NAMES, hyperparameter_file, register

COMMANDS = {
    "train": "rl_zoo3.train:train",
    "enjoy": "rl_zoo3.enjoy:enjoy",
    "plot": "rl_zoo3.plots:plot_train",
    "all_plots": "rl_zoo3.plots:all_plots",
    "plot_from_file": "rl_zoo3.plots:plot_from_file",
}


def main() -> int:
    command, *words = sys.argv[1:] or ["--help"]
    if command not in COMMANDS:
        print(f"usage: python -m staq.zoo {{{','.join(COMMANDS)}}} …\n\nRL Zoo, with {', '.join(NAMES)}.")
        return 0 if command in ("-h", "--help") else 2
    register()
    algo = _value(words, "--algo")
    if command == "train" and algo in NAMES and _value(words, "-conf", "--conf-file") is None:
        words += ["--conf-file", str(hyperparameter_file(algo))]
    sys.argv = [f"{sys.argv[0]} {command}", *words]
    module, function = COMMANDS[command].split(":")
    getattr(__import__(module, fromlist=[function]), function)()
    return 0


def _value(words: list[str], *options: str) -> str | None:
    """What a command line says of an option."""
    import argparse

    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument(*options, dest="value")
    return parser.parse_known_args(words)[0].value


if __name__ == "__main__":
    sys.exit(main())
