"""Every experiment can be built and is found by its name."""

from __future__ import annotations

from pathlib import Path

import pytest

from staq.cli import main as cli
from staq.cli.presets import check_hyperparameters
from staq.experiments import plans as experiments
from staq.experiments.record import plan


@pytest.mark.parametrize("name", experiments.names())
def test_every_experiment_can_be_built(name: str, tmp_path: Path) -> None:
    experiment = experiments.load(name)
    for variant in experiment.variants:
        check_hyperparameters(variant.hyperparameters, variant.algo)
    runs = plan(experiment, tmp_path, seeds=1)
    assert len(runs) == len(experiment.environments) * len(experiment.variants)
    assert len({run.folder for run in runs}) == len(runs)
    assert {run.config.timesteps for run in runs} == {1800 if experiment.timed else experiment.timesteps}


def test_names_are_checked(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["experiment", "show", "memmory"]) == 1
    assert "Did you mean 'memory'" in capsys.readouterr().err
    assert cli.main(["experiment", "list"]) == 0
    assert "deep-rl" in capsys.readouterr().out
    assert cli.main(["experiment", "show", "epsilon"]) == 0
    assert "epsilon=0.01" in capsys.readouterr().out
