"""Targets by hand; what makes it fast changes nothing, and never waits for the device in the gradient loop."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import nn

from tests.conftest import host_reads, small_model, targets_of


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x.sum().item(),
        lambda x: bool(x[0] > 0),
        lambda x: float(x[0]),
        lambda x: x[x > 0],
        lambda x: x.nonzero(),
        lambda x: x.unique(),
        lambda x: x.tolist(),
        lambda x: x.cpu(),
        lambda x: torch.equal(x, x),
    ],
)
def test_reads_are_noticed(read: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(5)
    with host_reads(monkeypatch) as found:
        read(x)
    assert found


@pytest.mark.parametrize(
    ("env_id", "arguments"),
    [
        ("CartPole-v1", {}),
        ("CartPole-v1", {"target_action": "sampled", "target_reduce": "min"}),
        ("CartPole-v1", {"policy_kwargs": {"net_arch": [16], "activation_fn": nn.Tanh}}),  # by autograd
        ("MinAtar/Breakout-v1", {}),
    ],
)
def test_the_gradient_loop_reads_nothing_back(
    env_id: str, arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One read per target window, how many distinct transitions were drawn; and at the end what is logged."""
    model = small_model(env_id, **arguments).learn(200)
    windows = 0
    evaluation: Any = model.policy_evaluation
    targets = evaluation.targets

    def counted(*given: Any) -> torch.Tensor:
        nonlocal windows
        windows += 1
        return targets(*given)

    evaluation.targets = counted
    with host_reads(monkeypatch) as found:
        model.evaluate()
    assert windows > 1
    assert found == [*["_unique2"] * windows, "tolist"]


def test_targets_equal_a_plain_loop() -> None:
    """scale·r + γ(1−terminated)(Σ π q̂ + τH), transition by transition, with the two target networks' mean."""
    model = small_model(reward_scale=3.0).learn(800)
    replay, tau = model.replay, model.step_size.entropy_weight
    batches = replay.draw(3, 16)
    targets = targets_of(model, batches)
    for rows, row_targets in zip(batches.tolist(), targets.tolist(), strict=True):
        for row, target in zip(rows, row_targets, strict=True):
            next_obs = replay.next_observations[row : row + 1]
            q = model.policy.q_net_target(next_obs).mean(0)[:, 0].tolist()
            pi = model.policy.logits_of(next_obs).softmax(-1)[0].tolist()
            value = sum(p * x for p, x in zip(pi, q, strict=True)) - tau * sum(p * math.log(p) for p in pi)
            expected = 3.0 * replay.rewards[row].item()
            if not replay.terminated[row]:
                expected += 0.99 * value
            assert target == pytest.approx(expected, rel=1e-4, abs=1e-4)


def test_sampled_targets_use_one_action_per_draw() -> None:
    model = small_model(target_action="sampled", target_reduce="min").learn(800)
    replay = model.replay
    row = int((~replay.terminated).nonzero()[0])
    targets = targets_of(model, torch.full((1, 2000), row))[0]
    assert len(targets.unique()) == 2  # CartPole has two actions
    q = model.policy.q_net_target(replay.next_observations[row : row + 1]).amin(0)[:, 0]
    gap = 0.99 * (q[0] - q[1]).abs().item()
    assert (targets.max() - targets.min()).item() == pytest.approx(gap, rel=1e-3)


def test_target_networks_are_copied_every_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    """200 gradient steps, an interval of 60: copies before steps 0, 60, 120 and 180, of what was learned by then."""
    model = small_model(target_update_interval=60)
    copies, steps = [], []
    evaluation = model.policy_evaluation
    monkeypatch.setattr(
        evaluation, "targets", lambda *given, real=evaluation.targets: copies.append(len(steps)) or real(*given)
    )
    optimizer_step = model.policy.optimizer.step
    monkeypatch.setattr(model.policy.optimizer, "step", lambda: steps.append(1) or optimizer_step())
    target = model.policy.q_net_target
    seen = []
    monkeypatch.setattr(
        target,
        "load_state_dict",
        lambda s, real=target.load_state_dict: seen.append(s["output__bias"].clone()) or real(s),
    )
    model.learn(200)
    assert copies == [0, 60, 120, 180]
    assert len(seen) == 4
    assert all(not torch.equal(a, b) for a, b in itertools.pairwise(seen))
    assert torch.equal(target.output__bias, seen[-1])


def test_only_the_online_networks_get_gradients() -> None:
    model = small_model().learn(400)
    trained = {id(p) for group in model.policy.optimizer.param_groups for p in group["params"]}
    assert trained == {id(p) for p in model.policy.q_net.parameters()}
    assert all(p.grad is None for p in model.policy.q_net_target.parameters())
    assert not any(w.requires_grad for block in model.policy.improvement.stack.blocks for w in block.values())
