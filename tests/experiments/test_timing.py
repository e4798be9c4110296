"""What is timed is deep in a run, phase by phase."""

from __future__ import annotations

from pathlib import Path

import torch

from staq.experiments import timing
from staq.experiments.timing import PHASES, full_model, measured
from tests.experiments.conftest import tiny


def test_what_is_timed_is_deep_in_a_run(tmp_path: Path) -> None:
    (run, *_) = [run for run in tiny(tmp_path) if run.config.hyperparameters["memory_size"] == 2]
    found = timing.of_run(run.config, steps=20)
    assert set(found["ms"]) == set(timing.PHASES)
    assert found["total_ms"] == sum(found["ms"].values()) > 0


def test_a_scenario_is_full_and_every_phase_is_timed() -> None:
    model = full_model("CartPole-v1", memory_size=7, n_envs=10, width=8)
    assert len(model.policy.improvement.frozen_names()) == 7
    assert model.replay.full
    assert not torch.equal(model.replay.observations[0], model.replay.observations[1])
    ms = measured(model, steps=20, samples=1)
    assert set(ms) == set(PHASES)
    assert all(value > 0 for phase, value in ms.items() if phase != "merge")
    assert ms["merge"] == 0
    assert len(model.policy.improvement.frozen_names()) == 7


def test_a_merged_scenario_merges() -> None:
    model = full_model("CartPole-v1", memory_size=40, n_envs=10, width=8, merged_into=16)
    ms = measured(model, steps=20, samples=3)
    assert all(value > 0 for value in ms.values())
    stack = model.policy.improvement.stack
    assert stack.n_pushed == 44
    assert len(stack) < 20


def test_variants_are_scenarios_too() -> None:
    model = full_model("CartPole-v1", n_envs=10, width=8, algo="ac-mproj", actor_steps=20)
    assert measured(model, steps=20, samples=1)["refresh"] > 0
