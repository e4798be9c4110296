"""Targets and losses against numbers worked by hand."""

from __future__ import annotations

import math

import pytest
import torch

from staq.policy_evaluation.soft_bellman import (
    ensemble_value,
    entropy,
    half_mse,
    soft_target,
    soft_value,
    soft_value_of_sample,
)

UNIFORM = torch.full((1, 2), 0.5).log()


def test_entropy_of_a_coin() -> None:
    assert entropy(UNIFORM).item() == pytest.approx(math.log(2))


def test_soft_value_by_hand() -> None:
    """π = (1/4, 3/4), q = (4, 8): 1 + 6 + τ·H with H = ¼ ln 4 + ¾ ln(4/3)."""
    log_pi = torch.tensor([[0.25, 0.75]]).log()
    h = 0.25 * math.log(4) + 0.75 * math.log(4 / 3)
    assert soft_value(torch.tensor([[4.0, 8.0]]), log_pi, 2.0).item() == pytest.approx(7 + 2 * h)


def test_target_by_hand() -> None:
    """10·1.5 + 0.9·20 where the episode goes on, 10·1.5 where it terminated."""
    target = soft_target(torch.tensor([1.5, 1.5]), torch.tensor([False, True]), torch.tensor([20.0, 20.0]), 0.9, 10.0)
    torch.testing.assert_close(target, torch.tensor([33.0, 15.0]))


def test_a_terminated_row_ignores_an_infinite_value() -> None:
    target = soft_target(torch.ones(1), torch.tensor([True]), torch.tensor([math.inf]), 0.9, 1.0)
    assert target.item() == 1.0


def test_ensemble_by_hand() -> None:
    q = torch.tensor([[1.0, 5.0], [3.0, 1.0]])
    assert ensemble_value(q, "mean").tolist() == [2.0, 3.0]
    assert ensemble_value(q, "min").tolist() == [1.0, 1.0]


def test_loss_by_hand() -> None:
    """½ mean((1, 3)²) = 2.5 for one network and ½ mean((0, 2)²) = 1 for the other."""
    q = torch.tensor([[1.0, 3.0], [0.0, 2.0]])
    assert half_mse(q, torch.zeros(2)).item() == pytest.approx(3.5)


def test_sampled_value_has_the_expected_one_as_its_mean() -> None:
    log_pi, q = torch.tensor([[0.2, 0.8]]).log(), torch.tensor([[10.0, 0.0]])
    generator = torch.Generator().manual_seed(0)
    n = 40_000
    samples = soft_value_of_sample(q.expand(n, 2), log_pi.expand(n, 2), 1.0, generator)
    assert samples.mean().item() == pytest.approx(soft_value(q, log_pi, 1.0).item(), abs=0.1)
    assert len(samples.unique()) == 2
