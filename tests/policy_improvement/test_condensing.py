"""Few networks in place of many: measured, exported, and as near as they say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from staq import StaQ, load_policy
from staq.policy_improvement import condensing
from staq.policy_improvement.condensing import groups
from staq.policy_improvement.mirror_descent import kl_divergence
from tests.conftest import lambda_model, small_model


@pytest.fixture(autouse=True)
def few_gradient_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(condensing, "DISTILLATION_STEPS", 100)


@pytest.fixture(scope="module")
def model() -> StaQ:
    """Its networks differ enough for a merge to show."""
    return small_model(memory_size=None, learning_rate=2e-2).learn(2400)


@given(st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=40), st.data())
def test_groups_cover_everything_once(weights: list[float], data: Any) -> None:
    n = data.draw(st.integers(1, len(weights)))
    found = groups(weights, n)
    assert len(found) == n
    assert [i for start, stop in found for i in range(start, stop)] == list(range(len(weights)))
    assert all(stop > start for start, stop in found)


def test_groups_have_about_equal_weight() -> None:
    assert groups([1.0] * 9, 3) == [(0, 3), (3, 6), (6, 9)]
    assert groups([0.1, 0.1, 0.1, 0.1, 0.2, 0.6], 2) == [(0, 5), (5, 6)]


def test_all_networks_are_the_policy_itself(model: StaQ) -> None:
    whole = model.condensed(n_networks=100)
    assert (whole.networks, whole.of_networks, whole.greedy_agreement) == (12, 12, 1.0)
    assert whole.kl == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("n", [1, 3])
def test_what_is_measured_is_so(model: StaQ, n: int, tmp_path: Path) -> None:
    """Also of the policy that was exported, whose description has it."""
    small = model.condensed(n_networks=n)
    assert small.networks == n
    small.export(tmp_path / "small", "CartPole-v1")
    policy, description = load_policy(tmp_path / "small")
    assert description["condensed"]["kl"] == small.kl
    assert description["condensed"]["networks"] == len(description["stack"]["relative_weights"]) == n
    obs = model.replay.observations[: model.replay.size()]
    original, condensed = (each.logits_of(obs).log_softmax(-1) for each in (model.policy, policy))
    kl = kl_divergence(original, condensed).mean().item()
    assert 0.2 * kl < small.kl < 5 * kl
    assert small.states == len(obs) // 5
    np.testing.assert_array_equal(policy.logits(obs[:9].numpy()), small.policy.logits(obs[:9].numpy()))
    assert model.condensed(n_networks=n).kl == small.kl


def test_gradient_steps_help(model: StaQ, monkeypatch: pytest.MonkeyPatch) -> None:
    distilled = model.condensed(n_networks=1).kl
    monkeypatch.setattr(condensing, "distill", lambda *_: None)
    assert distilled < model.condensed(n_networks=1).kl


def test_gradient_steps_that_harm_are_undone(model: StaQ, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(condensing, "LEARNING_RATE", 10.0)
    worse = model.condensed(n_networks=2).kl
    monkeypatch.setattr(condensing, "distill", lambda *_: None)
    assert worse == model.condensed(n_networks=2).kl


def test_as_few_as_are_near_enough(model: StaQ) -> None:
    by_networks = {n: model.condensed(n_networks=n).kl for n in (1, 2, 4)}
    assert model.condensed(max_kl=1.01 * by_networks[1]).networks == 1
    assert model.condensed(max_kl=1e-15).networks == 12


def test_a_product_of_parts_and_a_rollout() -> None:
    model = lambda_model("Pendulum-v1", memory_size=None).learn(2000)
    small = model.condensed(n_networks=1)
    assert small.of_networks == 10
    assert small.policy.predict(np.zeros((2, 3), dtype=np.float32))[0].shape == (2, 1)


def test_a_loaded_model_needs_states(model: StaQ, tmp_path: Path) -> None:
    model.save(tmp_path / "model")
    loaded = StaQ.load(tmp_path / "model")
    with pytest.raises(ValueError, match="as observations"):
        loaded.condensed(n_networks=1)
    obs = model.replay.observations[:200].numpy()
    assert loaded.condensed(n_networks=1, observations=obs).states == 40


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "Say either"),
        ({"n_networks": 1, "max_kl": 0.1}, "Say either"),
        ({"n_networks": 0}, "n_networks=0"),
        ({"max_kl": -1.0}, "max_kl=-1.0"),
    ],
)
def test_bad_input(model: StaQ, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        model.condensed(**arguments)


def test_an_actor_is_one_network_already() -> None:
    with pytest.raises(ValueError, match="nothing to condense"):
        lambda_model(algorithm="ACNoKL").learn(200).condensed(n_networks=1)
    with pytest.raises(ValueError, match="visited any states"):
        small_model().condensed(n_networks=1)


def test_a_policy_is_condensed_the_same_on_any_states_order() -> None:
    torch.manual_seed(1)  # the global generator is not asked
    model = small_model(memory_size=None).learn(1200)
    assert model.condensed(n_networks=1).kl == model.condensed(n_networks=1).kl
