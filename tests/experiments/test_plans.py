"""Every experiment can be built and is found by its name."""

from __future__ import annotations

from pathlib import Path

import pytest

from staq.cli import main as cli
from staq.cli.presets import check_hyperparameters
from staq.experiments import plans as experiments
from staq.experiments.plans import Experiment, Variant
from staq.experiments.record import plan


@pytest.mark.parametrize("name", experiments.names())
def test_every_experiment_can_be_built(name: str, tmp_path: Path) -> None:
    experiment = experiments.load(name)
    for variant in experiment.variants:
        check_hyperparameters(variant.hyperparameters, variant.algo)
    runs = plan(experiment, tmp_path, seeds=1)
    everywhere = len(experiment.environments)
    assert len(runs) == sum(len(variant.environments) or everywhere for variant in experiment.variants)
    assert len({run.folder for run in runs}) == len(runs)
    whole = 1800 if experiment.timed else experiment.timesteps
    own = {v.name: v.timesteps for v in experiment.variants}
    for run in runs:
        assert run.config.timesteps == pytest.approx(own[run.variant].get(run.config.env, whole), rel=0.05)


def test_lengths_and_presets_of_their_own(tmp_path: Path) -> None:
    """Of a variant in one environment; others have the experiment's."""
    variant = Variant("DQN", "dqn", presets={"CartPole-v1": "dqn-zoo-cartpole"}, timesteps={"CartPole-v1": 400_000})
    environments, length = ["CartPole-v1", "MinAtar/Breakout-v1"], 1_000_000
    experiment = Experiment("its", "title", "paper", environments, length, 1, [variant], length, 1, evaluations=20)
    first, second = plan(experiment, tmp_path)
    assert (first.config.preset, first.config.timesteps, first.config.eval_every) == (
        "dqn-zoo-cartpole",
        400_000,
        20_000,
    )
    assert (second.config.preset, second.config.timesteps) == ("dqn-minatar", length)


def test_names_are_checked(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["experiment", "show", "memmory"]) == 1
    assert "Did you mean 'memory'" in capsys.readouterr().err
    assert cli.main(["experiment", "list"]) == 0
    assert "deep-rl" in capsys.readouterr().out
    assert cli.main(["experiment", "show", "epsilon"]) == 0
    assert "epsilon=0.01" in capsys.readouterr().out
