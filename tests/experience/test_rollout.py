"""A rollout: what follows what, where it was cut, and how it is drawn from."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from staq.experience.rollout import Rollout
from staq.networks.conv_mlp import ConvMlp
from tests.conftest import VECTOR, StopAt, lambda_model


def rollout(n_steps: int = 4, n_envs: int = 3) -> Rollout:
    return Rollout(n_steps, n_envs, ConvMlp(VECTOR, 2, [8]), 2, torch.Generator().manual_seed(0))


def accumulate(obs: torch.Tensor) -> torch.Tensor:
    """c of a state is its first two numbers."""
    return obs[:, :2].double()


ACCUMULATING: Any = SimpleNamespace(accumulated_and_q=lambda obs: (accumulate(obs), None))


def add(to: Rollout, t: int, ended: dict[int, str] | None = None) -> None:
    """Step t: observations are t, next ones t + 1, or 100 + t where an episode has ended."""
    n, ended = to.n_envs, ended or {}
    obs = np.full((n, 5), t, dtype=np.float32)
    next_obs = obs + 1
    for env in ended:
        next_obs[env] = 100 + t
    infos = [{"TimeLimit.truncated": ended.get(env) == "truncated"} for env in range(n)]
    to.see(torch.as_tensor(obs), ACCUMULATING)
    done = np.array([env in ended for env in range(n)])
    to.add(obs, next_obs, np.zeros(n, dtype=int), np.full(n, float(t)), done, infos, torch.ones(n, dtype=torch.bool))


def test_only_what_nobody_acted_on_is_stored_by_itself() -> None:
    filled = rollout()
    add(filled, 0)
    add(filled, 1, {0: "terminated", 1: "truncated"})
    add(filled, 2)
    add(filled, 3, {2: "truncated"})
    filled.complete(accumulate)
    assert filled.cut.tolist() == [[False] * 3, [True, True, False], [False] * 3, [True] * 3]
    assert filled.terminated.nonzero().tolist() == [[1, 0]]
    followed = dict(zip(filled.next_rows.tolist(), filled.next_observations[:, 0].tolist(), strict=True))
    assert followed == {3 + 1: 101.0, 9: 4.0, 10: 4.0, 11: 103.0}
    assert torch.equal(filled.next_accumulated, accumulate(filled.next_observations))
    assert torch.equal(filled.flat("accumulated"), accumulate(filled.flat("observations")))


def test_the_first_step_after_an_evaluation_begins_anew() -> None:
    filled = rollout()
    for t in range(4):
        add(filled, t, {1: "truncated"})
    filled.complete(accumulate)
    filled.used = True
    assert len(filled) == 12, "a policy improvement still needs it"
    add(filled, 50)
    filled.complete(accumulate)
    assert len(filled) == 3
    assert filled.flat("rewards").tolist() == [50.0] * 3
    assert filled.next_rows.tolist() == [0, 1, 2]


def test_a_rollout_that_went_on_was_cut_in_between() -> None:
    """As after a callback has stopped learn(): the environments may have been reset since."""
    filled = rollout()
    add(filled, 0)
    filled.complete(accumulate)
    add(filled, 7)
    filled.complete(accumulate)
    assert filled.cut[:2].all()
    assert filled.next_observations[:, 0].tolist() == [1.0] * 3 + [8.0] * 3
    filled.complete(accumulate)
    assert len(filled.next_rows) == 6, "asked twice, cut once"


def test_there_is_room_for_a_longer_interval() -> None:
    filled = rollout(n_steps=2)
    for t in range(5):
        add(filled, t)
    filled.complete(accumulate)
    assert filled.flat("rewards").view(5, 3)[:, 0].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert torch.equal(filled.flat("accumulated"), accumulate(filled.flat("observations")))


@pytest.mark.parametrize(("batch_size", "per_pass"), [(6, 2), (5, 3), (12, 1)])
def test_every_pass_has_each_step(batch_size: int, per_pass: int) -> None:
    filled = rollout()
    for t in range(4):
        add(filled, t)
    batches = filled.minibatches(3, batch_size)
    assert batches.shape == (3 * per_pass, batch_size)
    passes = batches.view(3, -1)
    assert all(set(rows.tolist()) == set(range(12)) for rows in passes)
    assert not torch.equal(passes[0], passes[1])


def test_an_improvement_draws_what_it_asks_for_or_the_rollouts_own_passes() -> None:
    model = lambda_model(n_epochs=3)
    model.learn(200)
    states = model.experience.states(model.policy, 50)
    assert states.minibatches(None).shape == (3 * 4, 50)
    assert states.minibatches(6).shape == (6, 50)
    torch.testing.assert_close(states.log_pi.exp().sum(-1), torch.ones(200))
    assert torch.equal(states.q, model.policy.mean_q(states.obs))


def test_observations_may_change_their_type() -> None:
    """VecNormalize gives floats whatever its space says; nothing is known before the first step."""
    filled = rollout()
    add(filled, 0)
    assert filled.observations is not None
    assert filled.observations.dtype == torch.float32


def test_learning_goes_on_after_a_stop_in_mid_iteration() -> None:
    model: Any = lambda_model()
    model.learn(400, callback=StopAt(100))
    assert model._steps_in_iteration == 100
    model.learn(100, reset_num_timesteps=False)
    assert model.at_boundary
    assert len(model.experience) == 200
    cut = model.experience.cut[: model.experience.length]
    assert not cut[24].all(), "the episodes go on after 25 steps of four environments"
    assert cut[-1].all()


def test_other_parameters_mean_other_logits() -> None:
    model: Any = lambda_model(memory_size=3)
    other = lambda_model(memory_size=3, seed=8).learn(600)
    model.learn(400, callback=StopAt(100))
    model.set_parameters(other.get_parameters())
    rollout = model.experience
    expected = model.policy.improvement.accumulated(rollout.flat("observations"))
    torch.testing.assert_close(rollout.flat("accumulated"), expected)
