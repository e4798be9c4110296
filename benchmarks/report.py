"""The tables of a benchmark run: what a user asks first for the README, all of it for benchmarks/README.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

BEGIN, END = "<!-- speed -->", "<!-- /speed -->"

ENVS = {"spaceinvaders": "MinAtar/SpaceInvaders-v1", "cartpole": "CartPole-v1"}
LAMBDA_ENVS = {"spaceinvaders": "MinAtar/SpaceInvaders-v1", "breakout": "MinAtar/Breakout-v1"}
LAMBDA_RATIOS = {
    "replay_over_lambda": "the paper's evaluation takes … times as long per step, M = 1, all threads",
    "pqn_over_lambda": "a plain PQN takes … times as long outside of the environments, one thread",
    "ppo_over_lambda": "SB3's PPO takes … times as long outside of the environments, one thread",
    "m100_extra_over_row": "M = 100 over M = 1 costs … times its arithmetic",
    "m300_extra_over_row": "M = 300 over M = 1 costs … times its arithmetic",
    "merged300_extra_over_row": "300 pushes, merged, cost … times the arithmetic of their networks",
    "merged1000_extra_over_row": "1,000 pushes, merged, cost … times the arithmetic of their networks",
    "merged300_merging_percent": "of that time merging takes … % at 300 pushes",
    "merged1000_merging_percent": "and … % at 1,000",
}
MERGED_RATIOS = {
    "merged300_over_m1": "300 pushes, merged, take … times as long as M = 1",
    "merged1000_over_m1": "1,000 pushes, merged, take … times as long as M = 1",
    "merged300_memory_over_m1": "300 pushes, merged, take … times the memory of M = 1",
    "merged1000_memory_over_m1": "1,000 pushes, merged, take … times the memory of M = 1",
    "merged300_merging_percent": "merging takes … % of the time at 300 pushes",
    "merged1000_merging_percent": "and … % at 1,000",
    "one_environment_acting": "one environment acts … times faster than with M = 300",
    "one_environment_step": "its whole step is … times faster than with M = 300",
}
LAMBDA_ROWS = {
    "λ-returns, M = 1": "lambda M=1",
    "λ-returns, M = 30": "lambda M=30",
    "λ-returns, M = 100": "lambda M=100",
    "λ-returns, M = 300": "lambda M=300",
    "λ-returns, 300 pushes merged": "lambda merged 300",
    "λ-returns, 1,000 pushes merged": "lambda merged 1000",
    "λ-returns, M = 1, one thread": "lambda, one thread",
    "a plain PQN by conv2d, one thread": "PQN, conv2d",
    "a plain PQN by patches, one thread": "PQN, patches",
    "SB3's PPO, one thread": "PPO",
}
RATIOS = {
    "plain_over_m300": "the plain scheme takes … times as long",
    "vmap_over_m300": "the plain scheme by torch.vmap takes … times as long",
    "sb3_dqn_over_m300": "SB3's DQN takes … times as long",
    "m300_over_floor": "StaQ takes … times the arithmetic floor",
    "m300_extra_over_row": "M = 300 over M = 1 costs … times its arithmetic",
    "m1000_extra_over_row": "M = 1000 over M = 1 costs … times its arithmetic",
}
HEADLINES = {
    "plain_over_m300": "the paper's algorithm written plainly, over StaQ at M = 300",
    "sb3_dqn_over_m300": "SB3's DQN over StaQ at M = 300",
    "merged1000_over_m1": "exact mirror descent, merged, after 1,000 updates, over M = 1",
    "replay_over_lambda": "the paper's evaluation over λ-returns, M = 1",
    "pqn_over_lambda": "a plain PQN over λ-returns, M = 1, outside of the environments",
    "ppo_over_lambda": "SB3's PPO over λ-returns, M = 1, outside of the environments",
}
"""How many times as long …"""
ROWS = {
    "StaQ, M = 1": "M=1",
    "StaQ, M = 100": "M=100",
    "StaQ, M = 300": "M=300",
    "StaQ, M = 1000": "M=1000",
    "exact, 300 pushes merged": "merged 300",
    "exact, 1,000 pushes merged": "merged 1000",
    "StaQ, M = 300, one environment for 50": "one environment",
    "exact, 300 pushes merged, one environment": "merged, one environment",
    "SB3's DQN": "dqn",
    "the plain scheme, M = 300": "plain",
    "the plain scheme by torch.vmap": "plain, vmap",
    "the plain scheme with our layers": "plain, batched layers",
}


LAMBDA_HEADING = " | ".join(LAMBDA_ENVS.values())
HEADING, RULE = " | ".join(ENVS.values()), "|---|" + "--:|" * len(ENVS)


def headlines(results: dict[str, Any]) -> str:
    """A line each, with a dash where it was not measured."""
    envs = {**ENVS, **LAMBDA_ENVS}
    names = " | ".join(env_id.removeprefix("MinAtar/").removesuffix("-v1") for env_id in envs.values())
    lines = [f"| time per environment step | {names} |", "|---|" + "--:|" * len(envs)]
    known = [results[key] for key in ("ratios", "merged_ratios", "lambda_ratios")]
    for ratio, words in HEADLINES.items():
        found = [next((each[env][ratio] for each in known if ratio in each.get(env, {})), None) for env in envs]
        lines.append(_line(words, ["–" if value is None else f"{value:.3g} ×" for value in found]))
    return "\n".join([*lines, "", _made_on(results)])


def summary(results: dict[str, Any]) -> str:
    """The ratios: they travel between machines better than milliseconds do."""
    lines = [f"| StaQ at M = 300 | {HEADING} |", RULE]
    lines += [_line(words, [f"{results['ratios'][name][key]:.2f}" for name in ENVS]) for key, words in RATIOS.items()]
    for key, title, envs, ratios in (
        ("merged_ratios", f"| exact mirror descent, merged | {HEADING} |", ENVS, MERGED_RATIOS),
        ("lambda_ratios", f"| StaQ on λ-returns | {LAMBDA_HEADING} |", LAMBDA_ENVS, LAMBDA_RATIOS),
    ):
        if key in results:
            lines += ["", title, RULE]
            found = [results[key][name] for name in envs]
            lines += [_line(words, [f"{each[ratio]:.2f}" for each in found]) for ratio, words in ratios.items()]
    return "\n".join([*lines, "", _made_on(results)])


def _made_on(results: dict[str, Any]) -> str:
    machine, peak = results["machine"], results["calibration"]["peak_gflops"]
    kernels = "with" if machine["kernels"] else "without"
    rate = f"{machine['threads']} threads, {peak:.0f} GFLOP/s"
    return f"{machine['cpu']}, {rate}, torch {machine['torch']}, {kernels} compiled kernels."


def markdown(results: dict[str, Any]) -> str:
    """Everything."""
    rows, floor = results["rows"], results["floor_ms"]
    lines = [summary(results), "", f"| ms per environment step (peak memory) | {HEADING} |", RULE]
    for words, suffix in ROWS.items():
        if f"{ENVS['cartpole']} {suffix}" not in rows:  # of a run before it was measured
            continue
        cells = [rows[f"{env_id} {suffix}"] for env_id in ENVS.values()]
        lines.append(_line(words, [f"{cell['total_ms']:.2f} ({cell['peak_gb']:.2f} GB)" for cell in cells]))
    lines.append(_line("arithmetic floor, M = 300", [f"{floor[name]['300']:.2f}" for name in ENVS]))
    if "lambda_ratios" in results:
        lines += [
            "",
            f"| µs per environment step: environments + the rest | {LAMBDA_HEADING} |",
            RULE,
        ]
        for words, suffix in LAMBDA_ROWS.items():
            cells = [rows[f"{env_id} {suffix}"] for env_id in LAMBDA_ENVS.values()]
            lines.append(_line(words, [_in_two(cell) for cell in cells]))
        phases = ("env", "acting", "targets", "gradient", "improve", "rest")
        lines += ["", f"| µs, M = 1, one thread | {LAMBDA_HEADING} |", RULE]
        for phase in phases:
            cells = [rows[f"{env_id} lambda, one thread"]["ms"][phase] for env_id in LAMBDA_ENVS.values()]
            lines.append(_line(phase, [f"{1000 * ms:.1f}" for ms in cells]))
    lines += ["", f"| environment steps per second, M = 300 | {HEADING} |", RULE]
    for words, key in (("one run, all threads", "one_run"), ("a run per thread, together", "one_thread_each")):
        lines.append(_line(words, [f"{results['steps_per_second'][name][key]:.0f}" for name in ENVS]))
    lines += ["", f"| StaQ at M = 300 takes … times as long without | {HEADING} |", RULE]
    for name in _ablations(rows):
        lines.append(_line(name, [f"{_share(rows, env_id, name):.2f}" for env_id in ENVS.values()]))
    return "\n".join(lines)


def _in_two(row: dict[str, Any]) -> str:
    env = row["ms"]["env"]
    return f"{1000 * env:.1f} + {1000 * (row['total_ms'] - env):.1f}"


def _ablations(rows: dict[str, Any]) -> list[str]:
    """What was switched off in this run."""
    return list(dict.fromkeys(label.split(" without ")[1] for label in rows if " without " in label))


def _share(rows: dict[str, Any], env_id: str, ablation: str) -> float:
    """Time without an optimisation over time with it."""
    share: float = rows[f"{env_id} without {ablation}"]["total_ms"] / rows[f"{env_id} M=300"]["total_ms"]
    return share


def publish(table: str, page: Path) -> None:
    """Puts a table where a page has room for it."""
    before, rest = page.read_text().split(BEGIN)
    _, after = rest.split(END)
    page.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}")


def _line(words: str, cells: list[str]) -> str:
    return f"| {words} | {' | '.join(cells)} |"
