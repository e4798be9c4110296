"""StaQ's update in a training: the weights of its stack by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tests.conftest import small_model


@pytest.mark.parametrize("weighting", ["current", "exact"])
@pytest.mark.parametrize("memory_size", [3, None])
def test_the_policys_weights_by_hand(weighting: str, memory_size: int | None) -> None:
    """After five iterations of 200 steps: τ_k ln 2 = 2.0, 1.68, 1.36, 1.04, 0.72 and 0.4 for the next; η = 20."""
    model = small_model(weighting=weighting, memory_size=memory_size, ent_decay_steps=1000).learn(1000)
    tau = [scaled / math.log(2) for scaled in (2.0, 1.68, 1.36, 1.04, 0.72, 0.4)]
    beta, alpha = [20 / (20 + t) for t in tau], [1 / (20 + t) for t in tau]
    # q_i was pushed with weight 1 (or α_i) and multiplied by every later β up to β_4.
    weights = [math.prod(beta[i + 1 : 5]) * (1.0 if weighting == "current" else alpha[i]) for i in range(5)]
    if memory_size is not None:
        weights = weights[-memory_size:]
    correction = 1.0 if memory_size is None else 1 / (1 - beta[5] ** memory_size)
    stack = model.policy.improvement.stack
    assert stack.relative_weights == pytest.approx(weights, rel=1e-12)
    assert stack.prefactor == pytest.approx(correction * (alpha[5] if weighting == "current" else 1.0), rel=1e-12)
    frozen = model.q_values(np.zeros((1, 4), dtype=np.float32))[1].mean(2)[0]  # [n, A]
    expected = stack.prefactor * np.dot(weights, frozen - frozen.mean(-1, keepdims=True))
    np.testing.assert_allclose(model.logits(np.zeros((1, 4), dtype=np.float32))[0], expected, rtol=1e-4, atol=1e-6)


def test_memory_one_is_the_softmax_of_the_last_q_over_tau() -> None:
    model = small_model(memory_size=1).learn(1000)
    obs = model.replay.observations[:20].numpy()
    q = model.q_values(obs)[1][:, 0].mean(1)  # the frozen pair [B, A]
    expected = torch.tensor(q / model.step_size.entropy_weight).softmax(-1)
    np.testing.assert_allclose(model.action_probabilities(obs), expected, rtol=1e-3, atol=1e-5)


def test_without_annealing_both_weightings_are_one() -> None:
    same = {"ent_weight_init": 1.0, "ent_weight_final": 1.0}
    one, two = (small_model(weighting=w, **same).learn(1000) for w in ("current", "exact"))
    obs = one.replay.observations[:20].numpy()
    np.testing.assert_allclose(one.logits(obs), two.logits(obs), rtol=1e-3, atol=1e-5)
