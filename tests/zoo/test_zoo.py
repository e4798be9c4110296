"""RL Zoo with our algorithms, by its own command line; in processes of their own, since it patches Gymnasium."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from staq.cli import presets
from staq.registry import EVALUATIONS
from staq.search_space import SEARCH_SPACES
from staq.zoo import NAMES, hyperparameter_file
from staq.zoo.hyperparameters import table, text

pytest.importorskip("rl_zoo3")
SMALL = "policy_update_interval:128 memory_size:3 n_envs:4 batch_size:32 policy_kwargs:dict(net_arch=[16])".split()


def zoo(folder: Path, *commands: str) -> str:
    """Several commands in one process, since imports take most of the time."""
    script = (
        "import sys; from staq.zoo.__main__ import main\nfor line in sys.argv[1:]:\n    sys.argv = line.split(); main()"
    )
    environment = {"MPLBACKEND": "Agg", "PYTHONPATH": ":".join(sys.path), "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(
        [sys.executable, "-c", script, *(f"zoo {c}" for c in commands)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.parametrize("evaluation", EVALUATIONS)
def test_files_of_hyperparameters_are_our_presets(evaluation: str) -> None:
    assert Path(hyperparameter_file(_name(evaluation))).read_text() == text(evaluation), (
        "presets have changed: python -m staq.zoo.hyperparameters"
    )


@pytest.mark.parametrize("evaluation", EVALUATIONS)
def test_every_entry_is_made_of_what_the_algorithm_has(evaluation: str) -> None:
    of_zoo = {"n_timesteps", "n_envs", "policy", "env_kwargs", "env_wrapper"}
    for entry in table(evaluation).values():
        assert entry.get("evaluation", "replay") == evaluation
        presets.check_hyperparameters({name: value for name, value in entry.items() if name not in of_zoo})


@pytest.mark.parametrize("evaluation", EVALUATIONS)
def test_the_search_spaces_hold_the_presets_of_classic_control(evaluation: str) -> None:
    values = (
        presets.defaults("staq", evaluation)
        | presets.for_environment("CartPole-v1", evaluation=evaluation).hyperparameters
    )
    outside = {name: values[name] for name, space in SEARCH_SPACES[evaluation].items() if not space.has(values[name])}
    assert outside == {}


@pytest.mark.slow
def test_train_enjoy_plot_and_optimize(tmp_path: Path) -> None:
    small = f"-params {' '.join(SMALL)}"
    said = zoo(
        tmp_path,
        f"train --algo staq-lambda --env CartPole-v1 -n 512 --eval-freq 256 --seed 0 {small}",
        "enjoy --algo staq-lambda --env CartPole-v1 -f logs --no-render -n 100",
        "plot -a staq-lambda -e CartPole-v1 -f logs -w 2",
        "train --algo staq-lambda --env CartPole-v1 -n 1024 -optimize --n-trials 2 --n-evaluations 1 --no-optim-plots "
        f"--storage sqlite:///study.db --study-name study --seed 1 {small}",
        "train --algo staq-lambda --env CartPole-v1 -n 512 --storage sqlite:///study.db --study-name study "
        "--trial-id 1 -params policy_update_interval:1024",
    )
    assert (tmp_path / "logs/staq-lambda/CartPole-v1_1/CartPole-v1.zip").exists()
    assert (tmp_path / "logs/staq-lambda/CartPole-v1_1/best_model.zip").exists()
    assert "Mean reward:" in said
    assert "'evaluation', 'lambda'" in said
    assert "Number of finished trials:  2" in said
    assert "Loading from Optuna study" in said


def _name(evaluation: str) -> str:
    return next(name for name, (_, its) in NAMES.items() if its == evaluation)
