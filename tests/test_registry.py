"""The one list: every record loads, has a preset, a title and a public name; nothing of it needs PyTorch."""

from __future__ import annotations

import subprocess
import sys

import pytest

import staq
from staq import registry
from staq.cli import presets
from staq.cli.plot import labels_of
from staq.hyperparameters import chosen
from staq.loop import PolicyMirrorDescent
from staq.policy_evaluation.evaluation import PolicyEvaluation
from staq.registry import ALGORITHMS, EVALUATIONS, Algorithm


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_is_complete(name: str) -> None:
    record = ALGORITHMS[name]
    algorithm = record.load()
    assert algorithm.__name__ == record.class_name
    assert issubclass(algorithm, PolicyMirrorDescent) is record.ours
    assert (record.class_name in staq.__all__) is record.ours
    for env in ("CartPole-v1", "MinAtar/Breakout-v1", "Unheard-v0"):
        assert name in presets.for_environment(env, name).algorithms
    assert labels_of([{"algo": name, "memory_size": "300"}]) == ["StaQ M=300" if name == "staq" else record.title]


@pytest.mark.parametrize("name", EVALUATIONS)
def test_every_evaluation_loads(name: str) -> None:
    assert issubclass(registry.load_evaluation(name), PolicyEvaluation)


def test_an_unknown_name_names_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"no algorithm 'natgard'. Did you mean 'natgrad'\? There are: staq"):
        chosen("algorithm", "natgard", ALGORITHMS)
    with pytest.raises(ValueError, match=r"no evaluation 'replya'. Did you mean 'replay'\?"):
        staq.StaQ("MlpPolicy", "CartPole-v1", evaluation="replya")


def test_what_is_not_installed_is_named_with_its_extra() -> None:
    missing = Algorithm("far", "Far away", "not_installed_here:Far", presets="far", extra="baselines")
    with pytest.raises(
        ModuleNotFoundError, match=r"Far away needs not_installed_here.*pip install 'staq\[baselines\]'"
    ):
        missing.load()


def test_the_theory_lab_and_the_registry_need_no_pytorch_and_threads_soon_sleep() -> None:
    """In a process of its own, in which nothing has been imported yet."""
    script = (
        "import os, sys; os.environ.pop('GOMP_SPINCOUNT', None); import staq, staq.registry, staq.tabular.bounds;"
        "assert 'torch' not in sys.modules; print(os.environ['GOMP_SPINCOUNT'])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert int(done.stdout) <= 1000
