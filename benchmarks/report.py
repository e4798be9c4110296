"""The table of a benchmark run, as it stands in the README."""

from __future__ import annotations

from pathlib import Path
from typing import Any

BEGIN, END = "<!-- speed -->", "<!-- /speed -->"

ENVS = {"spaceinvaders": "MinAtar/SpaceInvaders-v1", "cartpole": "CartPole-v1"}
RATIOS = {
    "plain_over_m300": "the plain scheme takes … times as long",
    "sb3_dqn_over_m300": "SB3's DQN takes … times as long",
    "m300_over_floor": "StaQ takes … times the arithmetic floor",
    "m300_extra_over_row": "M = 300 over M = 1 costs … times its arithmetic",
    "m1000_extra_over_row": "M = 1000 over M = 1 costs … times its arithmetic",
}
ROWS = {
    "StaQ, M = 1": "M=1",
    "StaQ, M = 100": "M=100",
    "StaQ, M = 300": "M=300",
    "StaQ, M = 1000": "M=1000",
    "StaQ, M = 300, one environment for 50": "one environment",
    "SB3's DQN": "dqn",
    "the plain scheme, M = 300": "plain",
    "the plain scheme with our layers": "plain, batched layers",
}


def markdown(results: dict[str, Any]) -> str:
    """Ratios first: they travel between machines better than milliseconds do."""
    machine, rows, floor = results["machine"], results["rows"], results["floor_ms"]
    heading, rule = " | ".join(ENVS.values()), "|---|" + "--:|" * len(ENVS)
    lines = [f"| StaQ at M = 300 | {heading} |", rule]
    lines += [_line(words, [f"{results['ratios'][name][key]:.2f}" for name in ENVS]) for key, words in RATIOS.items()]
    lines += ["", f"| ms per environment step (peak memory) | {heading} |", rule]
    for words, suffix in ROWS.items():
        cells = [rows[f"{env_id} {suffix}"] for env_id in ENVS.values()]
        lines.append(_line(words, [f"{cell['total_ms']:.2f} ({cell['peak_gb']:.2f} GB)" for cell in cells]))
    lines.append(_line("arithmetic floor, M = 300", [f"{floor[name]['300']:.2f}" for name in ENVS]))
    lines += ["", f"| environment steps per second, M = 300 | {heading} |", rule]
    for words, key in (("one run, all threads", "one_run"), ("a run per thread, together", "one_thread_each")):
        lines.append(_line(words, [f"{results['steps_per_second'][name][key]:.0f}" for name in ENVS]))
    peak = results["calibration"]["peak_gflops"]
    kernels = "with" if machine["kernels"] else "without"
    rate = f"{machine['threads']} threads, {peak:.0f} GFLOP/s"
    lines += ["", f"{machine['cpu']}, {rate}, torch {machine['torch']}, {kernels} compiled kernels."]
    return "\n".join(lines)


def publish(table: str, readme: Path) -> None:
    """Puts the table where the README has room for it."""
    before, rest = readme.read_text().split(BEGIN)
    _, after = rest.split(END)
    readme.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}")


def _line(words: str, cells: list[str]) -> str:
    return f"| {words} | {' | '.join(cells)} |"
