"""Every speed figure of the project, in one run.

    python -m benchmarks               measures (about 30 minutes), writes benchmarks/results/ and the READMEs' tables
    python -m benchmarks --show        prints the table of the last run

Leave the machine to itself meanwhile. benchmarks/README.md explains the figures.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tqdm import tqdm

from benchmarks.ablations import ABLATIONS
from benchmarks.floor import gemm_rate, step_flops
from benchmarks.growth import draw
from benchmarks.report import ENVS, LAMBDA_ENVS, headlines, markdown, publish
from staq.cli.runs import provenance
from staq.experiments.timing import N_CRITICS, cpu_name
from staq.networks import kernels

FOLDER = Path(__file__).parent / "results"
MEMORY_SIZES = (1, 100, 300, 1000)
LAMBDA_MEMORY_SIZES = (1, 30, 100, 300)
MERGED_PUSHES = (300, 1000)
AUDIT = Path(__file__).parent.parent / "results" / "merging" / "eta-0.05-tolerance-0.1" / "audit.json"
"""Of a run with the default tolerance: how many networks its pushes were merged into."""
PLAIN_LAYERS = ("conv2d", "patches")
ROUNDS = 3
GROWTH: dict[str, tuple[int, ...]] = {
    "memory-size": (1, 30, 100, 300, 1000),
    "n-envs": (1, 10, 50, 100, 250),
    "batch-size": (64, 256, 1024),
    "width": (64, 128, 256, 512),
    "buffer-size": (10_000, 50_000, 200_000),
}
"""One setting of the MinAtar scenario at M = 300 is varied at a time."""
USUAL = {"n-envs": 50, "batch-size": 256, "width": 128, "buffer-size": 50_000}


def measure(module: str, *arguments: Any, threads: int) -> dict[str, Any]:
    """One benchmark in a process of its own. → the JSON of its last line"""
    command = [sys.executable, "-m", f"benchmarks.{module}", *map(str, arguments)]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def median_of(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Of every figure over the rounds; memory does not vary."""
    median = {key: statistics.median(result[key] for result in results) for key in ("total_ms", "peak_gb")}
    phases = results[0].get("ms", {})
    return median | {"ms": {phase: statistics.median(result["ms"][phase] for result in results) for phase in phases}}


def merged_arguments(pushes: int) -> tuple[Any, ...]:
    """Of a stack that is merged into as many networks as the audited run held after so many pushes."""
    rows = json.loads(AUDIT.read_text())
    networks = next(row["networks"] for row in rows if row["pushes"] >= pushes)
    return "--memory-size", pushes, "--merged-into", networks


def lambda_plan(env_id: str, threads: int) -> list[tuple[str, str, tuple[Any, ...], int]]:
    """λ-returns with all threads, and with one beside what a user would take instead."""
    replay = [(f"{env_id} M=1", "scenario", (env_id, "--memory-size", 1), threads)]
    plan: list[tuple[str, str, tuple[Any, ...], int]] = [] if env_id in ENVS.values() else list(replay)
    for m in LAMBDA_MEMORY_SIZES:
        arguments = (env_id, "--memory-size", m, "--iterations", 10 if m == 1 else 3)
        plan.append((f"{env_id} lambda M={m}", "lambda_returns", arguments, threads))
    for pushes in MERGED_PUSHES:
        merged = (env_id, *merged_arguments(pushes), "--iterations", 16)  # of which one in two merges
        plan.append((f"{env_id} lambda merged {pushes}", "lambda_returns", merged, threads))
    plan.append((f"{env_id} lambda, one thread", "lambda_returns", (env_id,), 1))
    plan += [(f"{env_id} PQN, {each}", "plain_pqn", (env_id, "--layers", each), 1) for each in PLAIN_LAYERS]
    return [*plan, (f"{env_id} PPO", "sb3_ppo", (env_id,), 1)]


def side_by_side(env_id: str, threads: int) -> dict[str, float]:
    """Environment steps per second of one run with all threads, and of as many runs with one thread each."""
    alone = measure("scenario", env_id, threads=threads)["total_ms"]
    with ThreadPoolExecutor(threads) as pool:
        runs = [pool.submit(measure, "scenario", env_id, threads=1) for _ in range(threads)]
        together = [run.result()["total_ms"] for run in runs]
    return {"one_run": 1000 / alone, "one_thread_each": sum(1000 / ms for ms in together)}


def run(threads: int) -> dict[str, Any]:
    plan: list[tuple[str, str, tuple[Any, ...], int]] = []
    for env_id in ENVS.values():
        plan += [(f"{env_id} M={m}", "scenario", (env_id, "--memory-size", m), threads) for m in MEMORY_SIZES]
        for pushes in MERGED_PUSHES:
            arguments = (env_id, *merged_arguments(pushes), "--samples", 4)
            plan.append((f"{env_id} merged {pushes}", "scenario", arguments, threads))
        plan.append((f"{env_id} plain", "plain", (env_id,), threads))
        plan.append((f"{env_id} plain, vmap", "plain", (env_id, "--layers", "vmap"), threads))
        plan.append((f"{env_id} dqn", "sb3_dqn", (env_id,), threads))
        plan += [(f"{env_id} without {name}", "scenario", (env_id, "--without", name), threads) for name in ABLATIONS]
    for env_id in LAMBDA_ENVS.values():
        plan += lambda_plan(env_id, threads)
    rates = [gemm_rate(threads)]
    found: dict[str, list[dict[str, Any]]] = {label: [] for label, *_ in plan}
    minatar = ENVS["spaceinvaders"]
    # Points of the growth plots that are scenarios of the plan as well.
    planned = {("memory-size", m): f"{minatar} M={m}" for m in MEMORY_SIZES}
    planned |= dict.fromkeys(USUAL.items(), f"{minatar} M=300")
    points = [(setting, value) for setting, values in GROWTH.items() for value in values]
    total = ROUNDS * len(plan) + len(set(points) - set(planned)) + 4 * len(ENVS)
    with tqdm(total=total, unit="measurement") as progress:

        def step(label: str, module: str, *arguments: Any, threads: int = threads) -> dict[str, Any]:
            progress.set_description(label)
            result = measure(module, *arguments, threads=threads)
            progress.update()
            return result

        # Round by round, so that a busy minute of the machine falls on all alike.
        for _ in range(ROUNDS):
            for label, module, arguments, its_threads in plan:
                found[label].append(step(label, module, *arguments, threads=its_threads))
            rates.append(gemm_rate(threads))
        rows = {label: median_of(results) for label, results in found.items()}
        few: tuple[Any, ...]
        for env_id in ENVS.values():
            few = ("--n-envs", 1, "--steps", 200, "--samples", 1)
            rows[f"{env_id} one environment"] = step(f"{env_id}, one environment", "scenario", env_id, *few)
            rows[f"{env_id} merged, one environment"] = step(
                f"{env_id}, merged, one environment", "scenario", env_id, *few, *merged_arguments(300)
            )
            rows[f"{env_id} plain, batched layers"] = step(
                f"{env_id}, plain with our layers", "plain", env_id, "--layers", "batched"
            )
        growth: dict[str, dict[int, Any]] = {setting: {} for setting in GROWTH}
        for setting, value in points:
            if (setting, value) in planned:
                growth[setting][value] = rows[planned[setting, value]]
                continue
            few = ("--steps", 200 if (setting, value) == ("n-envs", 1) else 500, "--samples", 1)
            growth[setting][value] = step(f"{setting} {value}", "scenario", minatar, f"--{setting}", value, *few)
        pairs = {}
        for name, env_id in ENVS.items():
            progress.set_description(f"{env_id}, side by side")
            pairs[name] = side_by_side(env_id, threads)
            progress.update()
    peak = max(rates)
    return {
        "machine": {"cpu": cpu_name(), "cores": os.cpu_count(), "threads": threads, **provenance()}
        | {"kernels": kernels.available()},
        "calibration": {"peak_gflops": peak / 1e9, "all_gflops": [rate / 1e9 for rate in rates]},
        "ratios": {name: ratios(env_id, rows, peak) for name, env_id in ENVS.items()},
        "merged_ratios": {name: merged_ratios(env_id, rows) for name, env_id in ENVS.items()},
        "lambda_ratios": {name: lambda_ratios(env_id, rows, peak) for name, env_id in LAMBDA_ENVS.items()},
        "rows": rows,
        "floor_ms": {name: floor(env_id, peak) for name, env_id in ENVS.items()},
        "steps_per_second": pairs,
        "growth": growth,
    }


def floor(env_id: str, peak: float) -> dict[str, float]:
    """Milliseconds that the arithmetic of a step takes at peak, for every M."""
    return {str(m): 1000 * sum(step_flops(env_id, m).values()) / peak for m in MEMORY_SIZES}


def ratios(env_id: str, rows: dict[str, dict[str, Any]], peak: float) -> dict[str, float]:
    """What the figures come to; below 1 is faster, but for the first three, where above 1 is."""
    ms = {m: rows[f"{env_id} M={m}"]["total_ms"] for m in MEMORY_SIZES}

    def extra_over_row(m: int) -> float:
        return (ms[m] - ms[1]) / (1000 * step_flops(env_id, m)["stack row"] / peak)

    return {
        "plain_over_m300": rows[f"{env_id} plain"]["total_ms"] / ms[300],
        "vmap_over_m300": rows[f"{env_id} plain, vmap"]["total_ms"] / ms[300],
        "sb3_dqn_over_m300": rows[f"{env_id} dqn"]["total_ms"] / ms[300],
        "m300_over_floor": ms[300] / floor(env_id, peak)["300"],
        "m300_extra_over_row": extra_over_row(300),
        "m1000_extra_over_row": extra_over_row(1000),
    }


def merged_ratios(env_id: str, rows: dict[str, dict[str, Any]]) -> dict[str, float]:
    """What a merged stack costs over M = 1, and what it saves where one environment reads the whole stack by itself."""
    single, whole, alone = (
        rows[f"{env_id} {label}"] for label in ("M=1", "one environment", "merged, one environment")
    )
    found = {
        "one_environment_acting": whole["ms"]["acting"] / alone["ms"]["acting"],
        "one_environment_step": whole["total_ms"] / alone["total_ms"],
    }
    for pushes in MERGED_PUSHES:
        merged = rows[f"{env_id} merged {pushes}"]
        found |= {
            f"merged{pushes}_over_m1": merged["total_ms"] / single["total_ms"],
            f"merged{pushes}_memory_over_m1": merged["peak_gb"] / single["peak_gb"],
            f"merged{pushes}_merging_percent": 100 * merged["ms"]["merge"] / merged["total_ms"],
        }
    return found


def lambda_ratios(env_id: str, rows: dict[str, dict[str, Any]], peak: float) -> dict[str, float]:
    """What λ-returns come to; above 1 is faster in the first three, below it in the others."""
    ms = {m: rows[f"{env_id} lambda M={m}"]["total_ms"] for m in LAMBDA_MEMORY_SIZES}
    alone = rows[f"{env_id} lambda, one thread"]
    outside = alone["total_ms"] - alone["ms"]["env"]

    def row_ms(networks: int) -> float:
        return 1000 * step_flops(env_id, networks)["stack row"] / N_CRITICS / peak  # one critic here

    def extra_over_row(m: int) -> float:
        return (ms[m] - ms[1]) / row_ms(m)

    found = {
        "replay_over_lambda": rows[f"{env_id} M=1"]["total_ms"] / ms[1],
        "pqn_over_lambda": min(rows[f"{env_id} PQN, {each}"]["ms"]["outside"] for each in PLAIN_LAYERS) / outside,
        "ppo_over_lambda": rows[f"{env_id} PPO"]["ms"]["outside"] / outside,
        "m100_extra_over_row": extra_over_row(100),
        "m300_extra_over_row": extra_over_row(300),
    }
    for pushes in MERGED_PUSHES:
        merged, networks = rows[f"{env_id} lambda merged {pushes}"], merged_arguments(pushes)[-1]
        found[f"merged{pushes}_extra_over_row"] = (merged["total_ms"] - ms[1]) / row_ms(networks)
        found[f"merged{pushes}_merging_percent"] = 100 * merged["ms"]["merge"] / merged["total_ms"]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--show", action="store_true", help="print the last run's table and measure nothing")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    if not options.show:
        FOLDER.mkdir(exist_ok=True)
        start = time.perf_counter()
        results = run(options.threads) | {"minutes": (time.perf_counter() - start) / 60}
        (FOLDER / "latest.json").write_text(json.dumps(results, indent=1) + "\n")
        draw(results, FOLDER)
        publish(headlines(results), FOLDER.parent.parent / "README.md")
        publish(markdown(results), FOLDER.parent / "README.md")
    print(markdown(json.loads((FOLDER / "latest.json").read_text())))


if __name__ == "__main__":
    main()
