"""Exact mirror descent with a merged stack: in training, in files, and against exact mirror descent itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from stable_baselines3.common.callbacks import BaseCallback

from staq import Checkpoints, ExactPMD, Snapshots, StaQ, load_policy
from staq.policy_improvement.audit import LEAST_STATES, audit
from staq.policy_improvement.mirror_descent import kl_divergence
from staq.storage.plain_data import DamagedFile
from staq.storage.snapshots import read_snapshots
from tests.conftest import StopAt, TinyExtractor, assert_identical, lambda_model, small_model
from tests.storage.conftest import finish

MERGED: dict[str, Any] = {"memory_size": None, "compression": "merge", "merge_tolerance": 10.0}
FAST = {"learning_rate": 0.03, "kl_weight": 2.0}  # neighbours that differ
CASES: list[tuple[Any, str, dict[str, Any]]] = [
    (small_model, "CartPole-v1", {"learning_rate": 0.01}),
    (small_model, "CartPole-v1", {"weighting": "exact", "n_critics": 1}),
    (
        lambda_model,
        "CartPole-v1",
        FAST | {"policy_kwargs": {"features_extractor_class": TinyExtractor, "net_arch": [8]}},
    ),
    (small_model, "MinAtar/Breakout-v1", {}),
    (lambda_model, "CartPole-v1", FAST),
    (lambda_model, "Pendulum-v1", FAST | {"n_critics": 2}),
    (lambda_model, "MinAtar/Breakout-v1", FAST | {"rollouts_per_update": 2}),
]


def networks_of(model: Any) -> int:
    return len(model.policy.improvement.stack)


@pytest.mark.parametrize(("make", "env_id", "arguments"), CASES)
def test_fewer_networks_than_pushes_and_the_bound_holds(
    tmp_path: Path, make: Any, env_id: str, arguments: dict[str, Any]
) -> None:
    """The audited distance is below what the training said of it, all along the run."""
    model = make(env_id, **MERGED, **arguments)
    model.learn(4000, callback=Snapshots(tmp_path))
    stack = model.policy.improvement.stack
    assert networks_of(model) < stack.n_pushed
    architecture = model.policy.architecture
    rows = list(audit(architecture, model.policy.n_critics, read_snapshots(tmp_path), lambda pushes: True))
    assert rows[-1].pushes == stack.n_pushed
    assert rows[-1].networks == networks_of(model)
    assert all(row.states >= LEAST_STATES for row in rows)
    assert all(row.mean_kl < row.kl_bound for row in rows if row.networks < row.pushes)
    assert rows[-1].mean_kl > 1e-10, "above rounding"


def test_the_audit_against_a_loop_over_all_snapshots(tmp_path: Path) -> None:
    class Pushes(BaseCallback):
        """Notes q_k and β_k as they are when a push has happened."""

        def __init__(self) -> None:
            super().__init__()
            self.q: list[Any] = []
            self.beta: list[float] = []

        def _on_step(self) -> bool:
            return True

        def _on_rollout_end(self) -> None:
            self.beta.append(self.model.step_size.beta)

        def _on_rollout_start(self) -> None:
            if self.model.iteration:
                self.q.append({name: w.detach().clone() for name, w in self.model.policy.q_net.weights.items()})

        _on_training_end = _on_rollout_start

    pushes, model = Pushes(), small_model(**MERGED)
    model.learn(3000, callback=[Snapshots(tmp_path), pushes])
    *_, last = audit(model.policy.architecture, 2, read_snapshots(tmp_path), lambda pushes: True)
    *_, snapshot = read_snapshots(tmp_path)
    newest = [each.states for each in read_snapshots(tmp_path)][-8:]
    obs = torch.cat(newest)
    c = torch.zeros(len(obs), 2, dtype=torch.float64)
    for weights, beta in zip(pushes.q, pushes.beta, strict=True):
        q = model.policy.architecture.q_values(weights, obs).mean(0).t().double().detach()
        c = beta * c + q - q.mean(-1, keepdim=True)
    exact = (model.step_size.alpha * c).log_softmax(-1)
    merged = model.policy.logits_of(obs).log_softmax(-1)
    assert last.states == len(obs)
    assert last.mean_kl == pytest.approx(kl_divergence(exact, merged).mean().item(), rel=1e-2)
    assert last.largest_kl == pytest.approx(kl_divergence(exact, merged).max().item(), rel=1e-2)
    assert last.greedy_agreement == pytest.approx((exact.argmax(-1) == merged.argmax(-1)).double().mean().item())
    assert last.median_policy_kl == snapshot.median_policy_kl > 0


@pytest.mark.parametrize(
    ("make", "env_id", "arguments", "stop_after"), [(*case, 2200) for case in CASES] + [(*CASES[0], 1000)]
)
def test_resuming_in_the_middle_of_the_schedule(
    tmp_path: Path, make: Any, env_id: str, arguments: dict[str, Any], stop_after: int
) -> None:
    """Bit for bit, snapshots included."""
    keeping = [Checkpoints(tmp_path / "whole", seconds=0), Snapshots(tmp_path / "all")]
    whole = make(env_id, **MERGED, **arguments).learn(3000, callback=keeping)
    cut = [Snapshots(tmp_path / "some"), Checkpoints(tmp_path / "cut", seconds=0), StopAt(stop_after + 1)]
    make(env_id, **MERGED, **arguments).learn(3000, callback=cut)
    resumed = finish(make(env_id, **MERGED, **arguments), tmp_path / "cut", 3000, Snapshots(tmp_path / "some"))
    assert_identical(whole, resumed)
    assert networks_of(whole) < whole.policy.improvement.stack.n_pushed
    merging, again = (model.policy.improvement.merging.state_dict() for model in (whole, resumed))
    assert merging == again
    names = [sorted(path.name for path in (tmp_path / folder).iterdir()) for folder in ("all", "some")]
    assert names[0] == names[1]


def test_no_tolerance_no_merge() -> None:
    model = small_model(**{**MERGED, "merge_tolerance": 1e-12}).learn(3000)
    assert networks_of(model) == 15


def test_an_export_of_a_merged_policy_is_the_policy(tmp_path: Path) -> None:
    model = small_model(**MERGED).learn(3000)
    model.export(tmp_path / "policy")
    policy, description = load_policy(tmp_path / "policy")
    obs = model.replay.observations[:50].numpy()
    np.testing.assert_array_equal(policy.logits(obs), model.logits(obs))
    assert description["stack"]["n_pushed"] == 15
    assert len(description["stack"]["spans"]) == networks_of(model) < 15


def test_a_saved_model_goes_on_merging(tmp_path: Path) -> None:
    model = small_model(**MERGED).learn(3000)
    model.save(tmp_path / "model")
    loaded = StaQ.load(tmp_path / "model", env=model.get_env())
    assert loaded.policy.improvement.merging.state_dict() == model.policy.improvement.merging.state_dict()
    networks = networks_of(loaded)
    loaded.learn(1000)
    assert networks_of(loaded) < networks + 5


def test_what_a_run_logs(tmp_path: Path) -> None:
    model = small_model(**MERGED).learn(3000)
    logged = model.logger.name_to_value
    assert model.policy.improvement.diagnostics().keys() >= {"networks", "pushes", "merge_kl", "merge_kl_bound"}
    assert not logged or logged["staq/pushes"] == 15
    assert "merge_kl" not in small_model().policy.improvement.diagnostics()


def test_a_finite_memory_cannot_be_merged() -> None:
    with pytest.raises(ValueError, match="memory_size=None"):
        small_model(compression="merge")
    assert ExactPMD("MlpPolicy", "CartPole-v1", compression="merge").memory_size is None


def test_an_actor_has_nothing_to_merge() -> None:
    with pytest.raises(TypeError, match="belongs to staq, exact-pmd"):
        lambda_model(algorithm="ACNoKL", compression="merge")


def test_an_actor_has_no_snapshots(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="use StaQ or ExactPMD"):
        lambda_model(algorithm="ACNoKL").learn(400, callback=Snapshots(tmp_path))


def test_snapshots_with_a_gap(tmp_path: Path) -> None:
    small_model(**MERGED).learn(1000, callback=Snapshots(tmp_path))
    (tmp_path / "push-000002.safetensors").unlink()
    with pytest.raises(DamagedFile, match="push 2"):
        list(read_snapshots(tmp_path))
    with pytest.raises(FileNotFoundError, match="--keep-snapshots"):
        list(read_snapshots(tmp_path / "elsewhere"))
