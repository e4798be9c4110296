"""Statistics against rliable's own and hand-worked ones; figures that exist; verdicts that can go either way."""

from __future__ import annotations

import html
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
from rliable import library, metrics

from staq.cli.rollouts import Evaluation, write_rows
from staq.experiments import plans as experiments
from staq.experiments.record import FINISHED, TIMING, Planned, plan
from staq.experiments.reports import claims, figures, write
from staq.experiments.reports.claims import CONFIRMED, OPEN, OPEN_TIMES, REFUTED
from staq.experiments.reports.scores import (
    RANDOM,
    Curves,
    Results,
    normalised,
    normalised_finals,
    paper,
    ratios,
    results,
    timings,
)
from staq.experiments.reports.statistics import (
    REPETITIONS,
    Estimate,
    interquartile_curves,
    interquartile_means,
    mean_interval,
    performance_profiles,
    probabilities_of_improvement,
)

RNG = np.random.default_rng(0)
SCORES = {"a": RNG.normal(0.6, 0.2, (6, 3)), "b": RNG.normal(0.4, 0.2, (6, 3))}


def test_a_students_interval_by_hand() -> None:
    """1, 2, 3: mean 2, deviation 1, t = 4.303, half width 4.303/√3 = 2.484."""
    estimate = mean_interval(np.array([1.0, 2.0, 3.0, np.nan]))
    assert (estimate.value, estimate.low, estimate.high) == pytest.approx((2, -0.484, 4.484), abs=1e-3)


def test_interquartile_means_are_rliables() -> None:
    found = interquartile_means(SCORES, seed=3)
    for name, values in SCORES.items():
        np.random.seed(3)  # noqa: NPY002
        points, intervals = library.get_interval_estimates(
            {name: values}, lambda x: np.array([metrics.aggregate_iqm(x)]), reps=REPETITIONS
        )
        assert found[name].value == points[name][0]
        assert (found[name].low, found[name].high) == tuple(intervals[name].flatten())
    assert interquartile_means(SCORES, seed=3) == found


def test_one_seed_has_no_interval() -> None:
    one = {name: values[:1] for name, values in SCORES.items()}
    assert interquartile_means(one)["a"].low is None
    assert mean_interval(np.array([1.0])).high is None
    assert probabilities_of_improvement(one, [("a", "b")])["a", "b"].low is None
    assert performance_profiles(one, np.linspace(0, 1, 5))["a"][1] is None
    assert "[" not in str(mean_interval(np.array([1.0])))


def test_probability_of_improvement() -> None:
    estimate = probabilities_of_improvement(SCORES, [("a", "b")])["a", "b"]
    by_hand = np.mean([[np.mean(x > y) for x in SCORES["a"][:, e] for y in SCORES["b"][:, e]] for e in range(3)])
    assert estimate.value == pytest.approx(by_hand)
    assert estimate.low is not None
    assert estimate.low < estimate.value


def test_profiles_fall_from_one_to_zero() -> None:
    shares, bounds = performance_profiles(SCORES, np.array([-9.0, 0.5, 9.0]))["a"]
    assert shares[0] == 1
    assert shares[-1] == 0
    assert shares[1] == pytest.approx((SCORES["a"] > 0.5).mean())
    assert bounds is not None


def test_the_scale() -> None:
    assert normalised(np.array([RANDOM["CartPole-v1"], 500.0]), "CartPole-v1") == pytest.approx([0, 1])
    assert set(paper("table_1")) == set(RANDOM)


def ended_at(env: str, returns: dict[str, float], seeds: int = 5) -> Results:
    """Finished seeds of each variant, that end close to a return."""

    steps = np.arange(1, 51) * 100_000

    def curves(value: float) -> Curves:
        noise = 0.01 * np.arange(seeds)[:, None] + 0 * steps
        return Curves(steps, value + noise, list(range(seeds)), [True] * seeds)

    return {env: {name: curves(value) for name, value in returns.items()}}


def world(ranks: dict[str, float], environments: Sequence[str]) -> Results:
    """Every environment, with normalised returns as given."""
    found: Results = {}
    for env in environments:
        best = max(paper("table_1")[env].values())
        found |= ended_at(env, {name: RANDOM[env] + rank * (best - RANDOM[env]) for name, rank in ranks.items()})
    return found


MINATAR = [env for env in RANDOM if env.startswith("MinAtar")]
PAPERS_WORLD: dict[str, dict[str, float]] = {
    "memory": {
        **{"Exact PMD": 1.0, "StaQ M=300": 1.0, "StaQ M=100": 0.99, "StaQ M=50": 0.8, "StaQ M=1": 0.3, "NatGrad": 0.5},
        **{"AC-DirectOpt": 0.6, "AC-MProj": 0.6, "AC-NoKL": 0.1},
    },
    "memory-small": {"Exact PMD": 0.6, "StaQ M=30": 0.6, "StaQ M=10": 0.5, "StaQ M=1": 0.1, "AC-MProj": 0.3},
    "epsilon": {
        f"{name} ε={e}": 1.0 if e != "0" else 0.5
        for name in ("StaQ M=300", "Exact PMD")
        for e in ("0", "0.01", "0.05", "0.1")
    },
    "natgrad-kl": {"NatGrad ε_KL=0.001": 0.9, "NatGrad ε_KL=0.01": 0.6},
    "actor-steps": {f"{actor} m={m}": m / 5000 for actor in ("AC-DirectOpt", "AC-MProj") for m in (500, 5000)},
}


def judged(name: str, found: Results, timesteps: int | None = None) -> list[claims.Verdict]:
    """At the experiment's full length, unless said otherwise."""
    experiment = experiments.load(name)
    return claims.judged(experiment, found, timesteps or experiment.timesteps)


@pytest.mark.parametrize("name", PAPERS_WORLD)
def test_claims_hold_in_the_papers_world_and_fail_in_its_opposite(name: str) -> None:
    ranks, games = PAPERS_WORLD[name], experiments.load(name).environments
    verdicts = judged(name, world(ranks, games))
    assert {v.verdict for v in verdicts} == {CONFIRMED}, [v for v in verdicts if v.verdict != CONFIRMED]
    opposite = judged(name, world({n: 1 - r for n, r in ranks.items()}, games))
    orders = [claim.relation != "same" for claim in claims.CLAIMS[name]]
    assert {v.verdict for v, order in zip(opposite, orders, strict=True) if order} == {REFUTED}


def test_claims_about_deep_rl_hold_in_the_papers_own_table() -> None:
    found: Results = {}
    for env, returns in paper("table_1").items():
        found |= ended_at(env, returns)
    assert {v.verdict for v in judged("deep-rl", found)} == {CONFIRMED}
    staq, dqn = found["CartPole-v1"]["StaQ M=300"], found["CartPole-v1"]["DQN"]
    found["CartPole-v1"] |= {"StaQ M=300": dqn, "DQN": staq}
    verdicts = {v.claim: v for v in judged("deep-rl", found)}
    assert verdicts["StaQ reaches DQN everywhere but on MountainCar"].verdict == REFUTED
    assert "(CartPole-v1)" in verdicts["StaQ reaches DQN everywhere but on MountainCar"].because


@pytest.mark.parametrize(("change", "verdict"), [(-5.0, REFUTED), (-0.1, CONFIRMED), (5.0, CONFIRMED)])
def test_what_the_first_deletion_does(change: float, verdict: str) -> None:
    """Of 20 points in Breakout: from 1.5M to 2.5M steps so many more, and thereafter none at all."""
    found = ended_at("MinAtar/Breakout-v1", {"StaQ M=300": 20.0})
    returns = found["MinAtar/Breakout-v1"]["StaQ M=300"].returns
    returns[:, 15:25] += change
    returns[:, 25:] = 0
    deletion = judged("deep-rl", found)[-1]
    assert deletion.verdict == f"{verdict} on 1 of 8 environments"
    assert "1,000,000 steps after 1,500,000 less as many before" in deletion.because
    assert judged("deep-rl", found, 2_400_000)[-1].verdict == OPEN


def test_claims_about_mountaincar_and_mujoco() -> None:
    def verdicts(sticky: float, softmax: float, rivals: dict[str, float]) -> list[str]:
        own = {"StaQ sticky": sticky, "StaQ softmax": softmax}
        return [v.verdict for v in judged("mountaincar", ended_at("MountainCar-v0", rivals | own))]

    papers = {"DQN": -105.0, "M-DQN": -99.0, "PPO": -131.0, "TRPO": -191.0}
    assert verdicts(-100, -200, papers) == [CONFIRMED] * 6
    assert verdicts(-199, -200, papers) == [*[REFUTED] * 5, CONFIRMED]
    assert verdicts(-100, -120, papers)[-1] == REFUTED, "softmax has learned"
    nobody = dict.fromkeys(papers, -200.0)
    assert verdicts(-200, -200, nobody) == [REFUTED, OPEN, OPEN, OPEN, OPEN, CONFIRMED], "to reach nothing is nothing"
    assert verdicts(-100, -200, nobody) == [CONFIRMED] * 6
    bodies = [ended_at(f"{body}-v4", {"factored": 3000.0, "boundary": 2000.0}) for body in ("HalfCheetah", "Walker2d")]
    found = [v.verdict for v in judged("mujoco", bodies[0] | bodies[1])]
    assert found == [CONFIRMED, CONFIRMED, OPEN], "Ant was not run"


def test_what_has_not_learned_is_not_the_same() -> None:
    """Differences count against what was gained over a uniform policy, not against the paper's final return."""
    games = experiments.load("memory-small").environments

    def is_exact(of_30: float, of_exact: float) -> str:
        found = judged("memory-small", world({"StaQ M=30": of_30, "Exact PMD": of_exact}, games))
        return next(v.verdict for v in found if "is exact" in v.claim)

    assert is_exact(0.0, 0.0) == OPEN
    assert is_exact(0.1, 0.16) == REFUTED, "6 points of Breakout where exact has 7 and the paper's best 44"
    assert is_exact(0.16, 0.16) == CONFIRMED


def test_a_part_of_the_environments_is_said() -> None:
    found = world(PAPERS_WORLD["memory"], ["MinAtar/Breakout-v1", "MinAtar/Freeway-v1"])
    verdicts = judged("memory", found)
    assert {v.verdict for v in verdicts} == {f"{CONFIRMED} on 2 of 5 environments"}
    assert (
        "(MinAtar/Breakout-v1 and MinAtar/Freeway-v1), over the second half of 5,000,000 steps" in verdicts[1].because
    )


@pytest.mark.parametrize(
    ("counts", "verdict"),
    [((5_000_000, 0, 25_000), CONFIRMED), ((50_000, 0, 250), OPEN), ((50_000, 1, 250), REFUTED)],
)
def test_the_claim_about_luck(counts: tuple[int, int, int], verdict: str) -> None:
    assert [v.verdict for v in claims.judged_luck({"none": counts}, 5_000_000)] == [verdict]
    assert claims.judged_luck({}, 5_000_000) == []


def test_budgets_at_which_nothing_can_be_said() -> None:
    """Early returns, and memories that have not been full for half of the run, decide nothing."""
    found = world(PAPERS_WORLD["memory"], MINATAR)
    assert {v.verdict for v in judged("memory", found, 500_000)} == {OPEN}
    halfway = {v.claim: v.verdict for v in judged("memory", found, 2_500_000)}
    assert halfway["M = 300 is virtually exact mirror descent"] == OPEN
    assert halfway["performance grows with M: 50 above 1"] == CONFIRMED


def test_an_environment_with_few_seeds_leaves_the_verdict_to_others() -> None:
    """On Breakout three seeds end at the same ceiling, of which one comes to it late; on Freeway there are two."""
    steps = np.arange(1, 5) * 75_000
    late = np.array([[0, 9, 9, 44], [0, 44, 44, 44], [0, 44, 44, 44]], dtype=float)
    at_once, finished = np.full((3, 4), 44.0), [True] * 3
    found: Results = {
        "MinAtar/Breakout-v1": {
            "StaQ M=30": Curves(steps, at_once, [0, 1, 2], finished),
            "Exact PMD": Curves(steps, at_once, [0, 1, 2], finished),
            "StaQ M=10": Curves(steps, late, [0, 1, 2], finished),
        },
        "MinAtar/Freeway-v1": {
            name: Curves(steps, np.full((2, 4), 60.0), [0, 1], finished[:2])
            for name in ("StaQ M=30", "Exact PMD", "StaQ M=10")
        },
    }
    ten_above_one, thirty_above_ten, thirty_is_exact, _ = judged("memory-small", found, 300_000)
    assert ten_above_one.verdict == OPEN
    assert "share 3 finished seeds on none of CartPole-v1, MinAtar/Breakout-v1" in ten_above_one.because
    assert thirty_is_exact.verdict == f"{CONFIRMED} on 1 of 4 environments"
    # Second halves are 26.5, 44 and 44: the last evaluation alone would call them equal.
    assert thirty_above_ten.verdict == OPEN
    assert thirty_above_ten.because.startswith("StaQ M=30 − StaQ M=10: 0.134 [")
    assert "uniform" not in thirty_above_ten.because


def test_sameness_is_asked_of_every_environment() -> None:
    """What is better on one and worse on another is not the same, though it is on average."""
    found = world({"StaQ M=300": 1.5, "Exact PMD": 1.0}, MINATAR[:1])
    found |= world({"StaQ M=300": 0.5, "Exact PMD": 1.0}, MINATAR[1:2])
    assert judged("memory", found)[0].verdict.startswith(REFUTED)


def test_two_seeds_decide_nothing_and_only_shared_seeds_count() -> None:
    env = MINATAR[0]
    found = ended_at(env, {"StaQ M=50": 40.0, "StaQ M=1": 20.0}, seeds=2)
    (claim,) = [v for v in judged("memory", found) if "50 above 1" in v.claim]
    assert claim.verdict == OPEN
    many = ended_at(env, {"StaQ M=50": 40.0, "StaQ M=1": 20.0}, seeds=6)
    other = many[env]["StaQ M=1"]
    many[env]["StaQ M=1"] = Curves(other.steps, other.returns, [s + 4 for s in other.seeds], other.finished)
    (claim,) = [v for v in judged("memory", many) if "50 above 1" in v.claim]
    assert claim.verdict == OPEN, "seeds 4 and 5 are shared"


@pytest.mark.parametrize(
    ("ratio", "verdict", "order"),
    [
        (Estimate(1.4, 1.36, 1.44), CONFIRMED, CONFIRMED),
        (Estimate(1.4, 1.3, 1.5), OPEN_TIMES, CONFIRMED),
        (Estimate(2.0, 1.9, 2.1), REFUTED, CONFIRMED),
        (Estimate(0.9, 0.8, 0.95), REFUTED, REFUTED),
        (Estimate(1.4), OPEN_TIMES, OPEN_TIMES),
    ],
)
def test_claims_about_the_time_of_actors(ratio: Estimate, verdict: str, order: str) -> None:
    measured = {(actor, unit): ratio for actor in claims.ACTORS for unit in ("StaQ M=1", "StaQ M=300")}
    assert [v.verdict for v in claims.judged_times(measured)][:6] == [verdict] * 3 + [order] * 3


@pytest.mark.parametrize(
    ("ratio", "memory", "dqn"),
    [
        (Estimate(1.05, 1.0, 1.09), CONFIRMED, REFUTED),
        (Estimate(1.3, 1.0, 1.6), OPEN_TIMES, REFUTED),
        (Estimate(0.6, 0.58, 0.65), CONFIRMED, CONFIRMED),
        (Estimate(0.6, 0.5, 0.7), CONFIRMED, OPEN_TIMES),
        (Estimate(1.5, 1.4, 1.6), REFUTED, REFUTED),
    ],
)
def test_claims_about_the_time_of_memory_and_dqn(ratio: Estimate, memory: str, dqn: str) -> None:
    verdicts = claims.judged_times({("StaQ M=300", "StaQ M=1"): ratio, ("DQN", "StaQ M=1"): ratio})
    assert [v.verdict for v in verdicts[6:]] == [memory, dqn]


# ---------------------------------------------------------------------- from folders to arrays and pages


def lay(run: Planned, returns: Sequence[float], finished: bool = True, late: int = 0) -> None:
    """A run's folder as training leaves it, with an evaluation every ``eval_every`` steps."""
    run.folder.mkdir(parents=True)
    run.config.save(run.folder, "staq experiment run")
    rows = []
    for i, mean in enumerate(returns):
        step = (i + 1) * run.config.eval_every + late
        rows += [
            Evaluation(step, mode, 20, mean - 100 * (mode != "greedy"), 0.0, mean, 10.0, 2.0 * step)
            for mode in ("greedy", "stochastic")
        ]
    write_rows(run.folder, rows)
    if finished:
        (run.folder / FINISHED).touch()


def planned(tmp_path: Path, **arguments: Any) -> list[Planned]:
    """Of two games and two memories at 20,000 steps: four evaluations."""
    games = {"envs": ["MinAtar/Breakout-v1", "MinAtar/Freeway-v1"], "variants": ["StaQ M=1", "StaQ M=50"]}
    return plan(experiments.load("memory"), tmp_path, **{"budget": 0.004, "seeds": 3} | games | arguments)


def test_finals_compare_whole_seeds_in_common_environments(tmp_path: Path) -> None:
    for i, run in enumerate(planned(tmp_path)):
        missing = (run.variant, run.config.env, run.config.seed) == ("StaQ M=50", "MinAtar/Breakout-v1", 0)
        lay(run, [0.0, 0.0, 0.0, 1.0 + i], finished=not missing)
    finals = normalised_finals(results(planned(tmp_path)), ["StaQ M=1", "StaQ M=50"])
    assert finals.environments == ["MinAtar/Breakout-v1", "MinAtar/Freeway-v1"]
    assert finals.seeds == {"StaQ M=1": [0, 1, 2], "StaQ M=50": [1, 2]}
    # Runs are listed seed by seed, game by game: M = 50 of seed 1 is the sixth in Breakout and the eighth in Freeway.
    assert finals.scores["StaQ M=50"][0] == pytest.approx([(6 - 0.38) / (44 - 0.38), (8 - 0.57) / (62 - 0.57)])


@pytest.mark.parametrize("finished", [0, 1, 2])
def test_an_environment_that_would_cost_the_interval_is_left_out_of_aggregates(finished: int, tmp_path: Path) -> None:
    """Breakout has three seeds of both, Freeway three of one and so many of the other: two are as few as may be."""
    for run in planned(tmp_path):
        if (run.variant, run.config.env) != ("StaQ M=50", "MinAtar/Freeway-v1") or run.config.seed < finished:
            lay(run, [1.0, 2.0, 3.0, 4.0])
    finals = normalised_finals(results(planned(tmp_path)), ["StaQ M=1", "StaQ M=50"])
    assert finals.environments == ["MinAtar/Breakout-v1", "MinAtar/Freeway-v1"][: 1 + (finished == 2)]
    assert finals.scores["StaQ M=50"].shape == ((2, 2) if finished == 2 else (3, 1))


def test_one_seed_is_aggregated_over_all_environments(tmp_path: Path) -> None:
    for run in planned(tmp_path, seeds=1):
        lay(run, [1.0, 2.0, 3.0, 4.0])
    assert normalised_finals(results(planned(tmp_path)), ["StaQ M=1", "StaQ M=50"]).scores["StaQ M=1"].shape == (1, 2)


def test_curves_take_greedy_rows_and_the_nearest_evaluation(tmp_path: Path) -> None:
    first, second, *_ = planned(tmp_path, seeds=1)
    lay(first, [1.0, 2.0, 3.0, 4.0], late=400)  # as an algorithm with other iterations
    lay(second, [5.0, 6.0], finished=False)
    found = results(planned(tmp_path, seeds=1))["MinAtar/Breakout-v1"]
    assert found["StaQ M=1"].returns.tolist() == [[1.0, 2.0, 3.0, 4.0]]
    assert found["StaQ M=1"].final == {0: 4.0}
    assert found["StaQ M=50"].returns[0, :2].tolist() == [5.0, 6.0]
    assert np.isnan(found["StaQ M=50"].returns[0, 2:]).all()
    assert found["StaQ M=50"].final == {}, "it is not finished"


def test_the_interquartile_curve_is_the_mean_of_each_step() -> None:
    values = RNG.normal(0.5, 0.2, (4, 2, 3))
    found = interquartile_curves({"a": values})["a"]
    for step in range(3):
        assert found[step].value == metrics.aggregate_iqm(values[:, :, step])


def test_the_page_says_what_was_run_and_what_was_not(tmp_path: Path) -> None:
    for run in planned(tmp_path):
        lay(run, [1.0, 2.0, 3.0, 30.0 if run.variant == "StaQ M=50" else 3.5])
    (stranger, *_) = planned(tmp_path, budget=0.008, seeds="3-3")
    lay(stranger, [9.0] * 8)
    runs = planned(tmp_path, seeds=4)
    page = write(experiments.load("memory"), runs, tmp_path, progress=lambda: None).read_text()
    assert "20,000 environment steps (0.40% of 5,000,000 in full) and 4 of 20 seeds. 12 of 16 runs" in page
    assert f"another configuration: {html.escape(str(stranger.folder))}" in page
    assert "30 [30, 30]" in page
    assert "MinAtar/Breakout-v1 0.38 to 44" in page
    assert "<td>confirmed" not in page, "at this budget nothing is decided"
    assert "20,000 steps, and it takes 2,500,000 at least" in page
    assert "&quot;memory_size&quot;: 50" in page
    names = {path.name for path in (tmp_path / "report").glob("*.svg")}
    assert names == {
        f"{n}.svg" for n in ("learning_curves", "final_boxes", "aggregate", "aggregate_curves", "profiles")
    }


def test_the_papers_numbers_stand_beside_ours(tmp_path: Path) -> None:
    part: dict[str, Any] = {"seeds": 1, "envs": ["MinAtar/Seaquest-v1"], "variants": ["dqn"]}
    runs = plan(experiments.load("deep-rl"), tmp_path, budget=0.004, **part)
    lay(runs[0], [1.0, 2.0, 3.0, 4.5])
    page = write(experiments.load("deep-rl"), runs, tmp_path, progress=lambda: None).read_text()
    cells = re.findall(r"<td[^>]*>([^<]*)</td>", page[page.index("Final returns") :])
    assert cells[:7] == ["MinAtar/Seaquest-v1", "DQN", "4.5", "3.75", "1", "16", "0.09"]


def test_ratios_of_time_pair_rounds_and_know_their_unit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = experiments.load("runtime")
    ms = {("StaQ M=1", 1): 10.0, ("StaQ M=1", 2): 20.0, ("StaQ M=300", 0): 1.0, ("StaQ M=300", 1): 11.0}
    ms |= {("StaQ M=300", 2): 22.0, ("AC-NoKL", 0): 5.0, ("AC-MProj", 1): 3.0}
    for run in plan(experiment, tmp_path):
        if (run.variant, run.config.seed) in ms:
            lay(run, [], finished=False)
            total = ms[run.variant, run.config.seed]
            machine = "another" if (run.variant, run.config.seed) == ("AC-MProj", 1) else "this one"
            content = {"total_ms": total, "ms": {}, "peak_gb": 1.0, "machine": machine}
            (run.folder / TIMING).write_text(json.dumps(content))
    monkeypatch.setattr(os, "cpu_count", lambda: 99)  # it is reported on another machine
    found = timings(plan(experiment, tmp_path))
    assert ratios(found, "StaQ M=300", "StaQ M=1").tolist() == pytest.approx([1.1, 1.1])
    assert ratios(found, "AC-NoKL", "StaQ M=1").size == 0
    assert ratios(found, "AC-MProj", "StaQ M=1").size == 0, "of two machines"
    page = write(experiment, plan(experiment, tmp_path), tmp_path, progress=lambda: None).read_text()
    assert "1.1 [1.1, 1.1]" in page
    assert page.count("both were not timed in two rounds yet") == 7
    assert "on another and this one" in page


def test_nothing_to_report_is_said(tmp_path: Path) -> None:
    runs = planned(tmp_path, seeds=1)
    lay(runs[0], [])
    with pytest.raises(ValueError, match="has been evaluated yet"):
        write(experiments.load("memory"), runs, tmp_path, progress=lambda: None)


@pytest.mark.parametrize("panels", [1, 2, 3])
@pytest.mark.parametrize("name", experiments.names())
def test_the_legend_fits_into_the_figure(name: str, panels: int) -> None:
    figure, axes = figures._panels(panels)
    for variant in experiments.load(name).variants:
        axes[0].plot([0, 1], label=variant.name)
    figures._legend(figure, axes)
    figure.canvas.draw()
    extent = figure.legends[0].get_window_extent()
    assert extent.x0 >= 0
    assert extent.x1 <= figure.bbox.width
    plt.close(figure)


def test_three_seeds_have_a_band_two_have_a_line_each_and_one_is_alone(tmp_path: Path) -> None:
    seeds = planned(tmp_path, seeds=3, envs=["MinAtar/Breakout-v1"], variants=["StaQ M=1"])
    for seed, returns in zip(seeds, ([1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 5.0], [2.0, 4.0]), strict=True):
        lay(seed, returns, finished=len(returns) == 4)
    curves = results(seeds)["MinAtar/Breakout-v1"]["StaQ M=1"]
    figure, axis = plt.subplots()
    figures._curve(axis, curves, ["StaQ M=1"], "StaQ M=1")
    (band,) = axis.collections
    assert max(path.vertices[:, 0].max() for path in band.get_paths()) == 10_000
    mean, *thin = axis.lines
    np.testing.assert_allclose(mean.get_ydata(), [4 / 3, 8 / 3, 4, 4])
    assert [line.get_xydata().tolist() for line in thin[:2]] == [[[15_000, 3]], [[15_000, 5]]]
    assert np.isnan(thin[2].get_ydata()).all()
    plt.close(figure)


def test_bodies_without_a_scale_are_not_called_unfinished(tmp_path: Path) -> None:
    runs = plan(experiments.load("mujoco"), tmp_path, budget=0.001, seeds=1, envs=["Ant-v4"])
    for run in runs:
        lay(run, [1.0])
    page = write(experiments.load("mujoco"), runs, tmp_path, progress=lambda: None).read_text()
    assert "no scale to aggregate them on" in page
