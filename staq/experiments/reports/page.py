"""One self-contained HTML page per experiment: nothing to download, nothing that runs."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from staq.cli.runs import provenance
from staq.experiments import random_policy
from staq.experiments.plans import Experiment
from staq.experiments.record import Planned
from staq.experiments.reports import claims, figures
from staq.experiments.reports.scores import (
    RANDOM,
    Finals,
    Results,
    after_minutes,
    against_minutes,
    mean_phases,
    normalised_finals,
    paper,
    ratios,
    results,
    timings,
)
from staq.experiments.reports.statistics import mean_interval, probabilities_of_improvement

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1100px; margin: 2rem auto; padding: 0 1rem; color: #222 }
h1 { font-size: 1.5rem } h2 { font-size: 1.15rem; margin-top: 2.2rem }
table { border-collapse: collapse; margin: .6rem 0 } td, th { padding: .2rem .7rem; border-bottom: 1px solid #ddd }
th { text-align: left } td { font-variant-numeric: tabular-nums }
img { max-width: 100% } .note { color: #555 } pre { background: #f6f6f6; padding: .6rem; overflow-x: auto }
"""


def write(experiment: Experiment, runs: Sequence[Planned], out: Path, progress: Callable[[], object]) -> Path:
    """Figures beside the runs, and the page of them. → the page

    :param progress: called after each part of the page
    """
    if not (timings(runs) if experiment.timed else results(runs)):
        raise ValueError(
            f"No run in {out} has been evaluated yet: staq experiment status {experiment.name} --out {out}"
        )
    folder = out / "report"
    folder.mkdir(exist_ok=True)
    parts = []
    parts_of = _timings if experiment.timed else _minutes if experiment.minutes else _returns
    for part in parts_of(experiment, runs, out, folder):
        parts.append(part)
        progress()
    parts.append(_configurations(runs))
    page = folder / "index.html"
    title = html.escape(f"{experiment.name}: {experiment.title}")
    page.write_text(
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{STYLE}</style>'
        f"<body>{''.join(parts)}</body></html>\n",
        encoding="utf-8",
    )
    return page


def _returns(experiment: Experiment, runs: Sequence[Planned], out: Path, folder: Path) -> Iterator[str]:
    """The parts of a page about returns."""
    found = results(runs)
    variants = [variant.name for variant in experiment.variants]
    timesteps = max(run.config.timesteps for run in runs)
    finals = normalised_finals(found, variants)
    yield _heading(experiment, runs, timesteps)
    deletes = timesteps > claims.FIRST_DELETION and any("M=300" in name for name in variants)
    marks = {"first deletion of M = 300": claims.FIRST_DELETION} if deletes else None
    yield _section("Learning curves", [figures.learning_curves(found, variants, folder, marks)], CURVES)
    boxes = figures.final_boxes(found, variants, folder)
    if boxes is not None:
        yield _section("Where runs ended", [boxes], BOXES)
    if finals.scores:
        yield _section(
            "All environments together, step by step",
            [figures.aggregate_curves(found, finals, variants, folder)],
            TOGETHER,
        )
        picture, estimates = figures.aggregate(finals.scores, variants, folder)
        yield _section("All environments together", [picture], AGGREGATE + _of_what(finals))
        rows = [[name, str(estimate), str(len(finals.seeds[name]))] for name, estimate in estimates.items()]
        yield _table(["variant", "interquartile mean [95 %]", "seeds"], rows)
        yield _improvement(finals.scores)
        yield _section("Performance profiles", [figures.profiles(finals.scores, variants, folder)], PROFILES)
    else:
        reason = NOTHING_TOGETHER if any(env in RANDOM for env in found) else NO_SCALE
        yield f'<p class="note">{html.escape(reason)}</p>'
    counts = random_policy.read(out)
    if counts:
        yield _section("What a uniform policy reaches", [figures.random_policy(counts, folder)], RANDOM_POLICY)
    entropies = figures.entropies(runs, variants, folder) if experiment.sticky_rates else None
    if entropies is not None:
        yield _section("Entropy of the learned policies", [entropies], "One line per seed.")
    yield _finals(found, variants, timesteps)
    verdicts = claims.judged(experiment, found, timesteps)
    yield _verdicts([*verdicts, *claims.judged_random_policy(counts, experiment.paper_timesteps)])


def _minutes(experiment: Experiment, runs: Sequence[Planned], out: Path, folder: Path) -> Iterator[str]:
    """The parts of a page about returns against time."""
    found, variants = against_minutes(runs), [variant.name for variant in experiment.variants]
    finished = sum(run.state == "finished" and not run.config_differs for run in runs)
    yield (
        f"<h1>{html.escape(experiment.title)}</h1><p>{finished} of {len(runs)} runs are finished, of "
        f"{len({run.config.seed for run in runs})} seeds.</p>"
    )
    yield _section(
        "Return against minutes", [figures.minutes_curves(found, variants, experiment.minutes, folder)], MINUTES
    )
    rows = [
        [env, name, *(_estimated(after_minutes(cells[name], minutes)) for minutes in experiment.minutes)]
        for env, cells in found.items()
        for name in variants
        if name in cells
    ]
    header = ["environment", "variant", *(f"after {minutes:g} min [95 %]" for minutes in experiment.minutes)]
    yield _table(header, rows)


def _estimated(values: np.ndarray) -> str:
    """Over the seeds that have come so far; a dash where none has."""
    return str(mean_interval(values)) if np.isfinite(values).any() else "–"


def _timings(experiment: Experiment, runs: Sequence[Planned], out: Path, folder: Path) -> Iterator[str]:
    """The parts of a page about time."""
    found, hours, unit = timings(runs), paper("hours"), experiment.variants[0].name
    compared = {(a, b): ratios(found, a, b) for a in found for b in found}
    estimates = {pair: mean_interval(several) for pair, several in compared.items() if len(several)}
    machines = {one["machine"] for rounds in found.values() for one in rounds.values()}
    yield (
        f"<h1>{html.escape(experiment.title)}</h1><p>{html.escape(experiment.paper)} of the paper, on "
        f"{html.escape(', '.join(experiment.environments))}: {sum(run.state == 'finished' for run in runs)} of "
        f"{len(runs)} measurements are made, on {html.escape(' and '.join(sorted(machines)))}.</p>"
    )
    yield _section("Where the time of a step goes", [figures.phases(mean_phases(found), folder)], PHASES)
    rows = [
        [
            name,
            f"{np.mean([one['total_ms'] for one in rounds.values()]):.2f}",
            str(estimates.get((name, unit), "")),
            f"{max(one['peak_gb'] for one in rounds.values()):.2f}",
            f"{hours[name]:g}" if name in hours else "",
            f"{hours[name] / hours[unit]:.2f}" if name in hours else "",
        ]
        for name, rounds in found.items()
    ]
    header = ["variant", "ms per step", f"over {unit} [95 %]", "peak GB", "the paper's hours", f"over {unit}"]
    yield _section("Beside the paper", [], HOURS) + _table(header, rows)
    yield _verdicts(claims.judged_times(estimates))


def _verdicts(verdicts: list[claims.Verdict]) -> str:
    rows = [[v.claim, v.verdict, v.because] for v in verdicts]
    return "<h2>The paper's claims</h2>" + _table(["claim", "verdict", "because"], rows) if rows else ""


PHASES = (
    "One environment step at the paper's settings, deep in a run: replay and stack are full, so that M = 300 evaluates "
    "300 Q-functions. Mean over the rounds. Refresh is what a policy update needs besides the push: logits of the "
    "replayed states, and an actor's training. DQN is not divided into phases."
)
HOURS = (
    "The paper's hours are of 5M steps on a V100, where many small networks cost hardly more than one; on a CPU each "
    "takes its time. Ours act for 50 environments at once and have kernels of their own; DQN is SB3's, acts for one, "
    "and learns from StaQ's batches of 256 with one network where StaQ trains two: the row of one critic is about what "
    "it would cost on our loop. The interval is over rounds of one sitting: another one may differ by more, and so may "
    "another machine."
)
CURVES = (
    "Mean greedy return over seeds with Student's 95 % interval, which may reach beyond the axes; one seed has none. "
    "Of two seeds, whose interval would cover the panel, each is a thin line. "
    "An algorithm that is evaluated a little later, since its updates come at other steps, is shown at the nearest one."
)
MINUTES = (
    "Greedy return against the CPU time of training on one core, evaluations left out: a thin line for each seed, "
    "their mean in bold. In the table, of every seed the last evaluation until then; means with Student's 95 % "
    "interval. The steps of every run were chosen to take about the longest of these times, and what falls over a run "
    "(learning rates, exploration) falls over them."
)
BOXES = "The last evaluation of every finished run: a dot each, quartiles from three runs on."
AGGREGATE = (
    "Returns are normalised per environment: 0 is a uniform policy, 1 the best of the paper's Table 1, which gives no "
    "constants of its own. The interval is a stratified bootstrap over seeds (rliable); of two or three seeds it is "
    "much too narrow, since it knows of no others."
)
TOGETHER = (
    "Interquartile mean over environments and the seeds that are finished in all of them, of the normalised return; "
    "bands are stratified bootstrap intervals over seeds, and one seed has none."
)
RANDOM_POLICY = (
    "Of a uniform policy that holds each action for max(1, Poisson(λ)) steps, the share of episodes that reach the "
    "goal; their number stands above the bar."
)
PROFILES = "The share of runs whose normalised return ends above a value: the higher a curve, the better."


def _of_what(finals: Finals) -> str:
    """Which environments the aggregates are of, and between what their returns are scaled."""
    scales = [f"{env} {RANDOM[env]:g} to {max(paper('table_1')[env].values()):g}" for env in finals.environments]
    return f" Environments in which every variant has finished seeds enough, and their scales: {'; '.join(scales)}."


NOTHING_TOGETHER = "No environment has a finished run of every variant yet, so that nothing can be aggregated."
NO_SCALE = "The paper gives no final returns for these environments, so that there is no scale to aggregate them on."


def _heading(experiment: Experiment, runs: Sequence[Planned], timesteps: int) -> str:
    finished = sum(run.state == "finished" and not run.config_differs for run in runs)
    seeds = len({run.config.seed for run in runs})
    share = timesteps / experiment.paper_timesteps
    others = [str(run.folder) for run in runs if run.config_differs]
    left_out = f" Left out, since they have another configuration: {', '.join(others)}." if others else ""
    return (
        f"<h1>{html.escape(experiment.title)}</h1><p>{html.escape(experiment.paper)} of the paper, at "
        f"{timesteps:,} environment steps ({share:.2%} of {experiment.paper_timesteps:,} in full) and {seeds} of "
        f"{experiment.paper_seeds} seeds. {finished} of {len(runs)} runs are finished.{html.escape(left_out)}</p>"
    )


def _section(title: str, pictures: Iterable[Path], note: str) -> str:
    images = "".join(
        f'<img alt="{html.escape(title)}" src="data:image/png;base64,{base64.b64encode(p.read_bytes()).decode()}">'
        for p in pictures
    )
    return f'<h2>{html.escape(title)}</h2>{images}<p class="note">{html.escape(note)}</p>'


def _table(header: list[str], rows: list[list[str]]) -> str:
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in header)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def _finals(found: Results, variants: list[str], timesteps: int) -> str:
    """Table 1 beside ours."""
    theirs_of, rows = paper("table_1"), []
    for env, cells in found.items():
        for name in variants:
            if name in cells and cells[name].final:
                final, late = (np.array(list(of.values())) for of in (cells[name].final, cells[name].second_half))
                theirs = theirs_of.get(env, {}).get(name)
                rows.append(
                    [
                        env,
                        name,
                        str(mean_interval(final)),
                        str(mean_interval(late)),
                        str(len(final)),
                        "" if theirs is None else f"{theirs:g}",
                        f"{RANDOM[env]:g}" if env in RANDOM else "",
                    ]
                )
    ours = [f"return at {timesteps:,} steps [95 %]", "mean over the second half [95 %]", "seeds"]
    header = ["environment", "variant", *ours, "paper, 5M steps", "random"]
    return "<h2>Final returns</h2>" + _table(header, rows) if rows else ""


def _improvement(finals: dict[str, np.ndarray]) -> str:
    names = list(finals)
    best = max(names, key=lambda name: float(finals[name].mean()))
    pairs = [(best, name) for name in names if name != best]
    found = probabilities_of_improvement(finals, pairs)
    rows = [[f"{a} over {b}", str(estimate)] for (a, b), estimate in found.items()]
    return _table(["probability of improvement", "[95 %]"], rows) if rows else ""


def _configurations(runs: Sequence[Planned]) -> str:
    """Of every environment and variant one run's, as it was stored with it; seeds differ in nothing else."""
    shown: dict[tuple[str, str], str] = {}
    for run in runs:
        stored = run.folder / "config.json"
        if stored.exists() and not run.config_differs:
            shown.setdefault((run.config.env, run.variant), stored.read_text())
    blocks = [
        f"<details><summary>{html.escape(' · '.join(key))}</summary><pre>{html.escape(text)}</pre></details>"
        for key, text in shown.items()
    ]
    made_by = html.escape(json.dumps(provenance(), indent=1))
    return f"<h2>Configurations</h2>{''.join(blocks)}<h2>This report was made by</h2><pre>{made_by}</pre>"
