"""The runtime table of the paper (Fig. 1, right) on this machine: what each policy update costs, all else equal.

    python -m benchmarks.runtime

MinAtar/SpaceInvaders-v1, the paper's settings, stack and replay full. Ratios to StaQ with M = 1, beside those of the
paper's hours on a V100 for 5M steps. Writes results/runtime.json.
"""

from __future__ import annotations

import json
import os
from typing import Any

from tqdm import tqdm

from benchmarks.__main__ import FOLDER, measure, median_of
from staq.runs import provenance

ENV_ID = "MinAtar/SpaceInvaders-v1"
ROUNDS = 3
ROWS: dict[str, tuple[float, str, tuple[str, ...]]] = {
    "StaQ, M = 1": (9.6, "scenario", ("--memory-size", "1")),
    "StaQ, M = 100": (10.4, "scenario", ("--memory-size", "100")),
    "StaQ, M = 300": (10.5, "scenario", ("--memory-size", "300")),
    "AC-NoKL (SAC)": (13.9, "scenario", ("--algo", "ac-nokl", "--samples", "1")),
    "AC-MProj (ECPO)": (13.1, "scenario", ("--algo", "ac-mproj", "--samples", "1")),
    "AC-DirectOpt (MDPO)": (13.2, "scenario", ("--algo", "ac-directopt", "--samples", "1")),
    "DQN": (5.8, "sb3_dqn", ()),
}
"""The paper's hours, and how each is measured here."""


def main() -> None:
    threads = os.cpu_count() or 1
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in ROWS}
    with tqdm(total=ROUNDS * len(ROWS), unit="measurement") as progress:
        for _ in range(ROUNDS):  # round by round, so that a busy minute falls on all alike
            for name, (_, module, arguments) in ROWS.items():
                progress.set_description(name)
                found[name].append(measure(module, ENV_ID, *arguments, threads=threads))
                progress.update()
    ms = {name: median_of(results)["total_ms"] for name, results in found.items()}
    hours = {name: row[0] for name, row in ROWS.items()}
    one = "StaQ, M = 1"
    table = {
        name: {
            "ms": ms[name],
            "ratio": ms[name] / ms[one],
            "paper_hours": hours[name],
            "paper_ratio": hours[name] / hours[one],
        }
        for name in ROWS
    }
    FOLDER.mkdir(exist_ok=True)
    content = {"machine": provenance() | {"threads": threads}, "environment": ENV_ID, "rows": table}
    (FOLDER / "runtime.json").write_text(json.dumps(content, indent=1) + "\n")
    print(f"| {ENV_ID} | ms per step | over M = 1 | the paper's hours | over M = 1 |\n|---|--:|--:|--:|--:|")
    for name, row in table.items():
        print(f"| {name} | {row['ms']:.2f} | {row['ratio']:.2f} | {row['paper_hours']} | {row['paper_ratio']:.2f} |")


if __name__ == "__main__":
    main()
