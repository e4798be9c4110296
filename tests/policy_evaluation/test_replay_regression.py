"""What makes it fast changes nothing, and never waits for the device in the gradient loop."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from staq import StaQ
from staq.policy_evaluation.soft_bellman import half_mse
from tests.conftest import host_reads, small_model


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


def plain_evaluation(model: StaQ) -> dict[str, torch.Tensor]:
    """``evaluate`` as a textbook would have it: autograd, Adam, and a target for every draw when it is needed."""
    q_net, target_net = copy.deepcopy(model.policy.q_net), copy.deepcopy(model.policy.q_net_target)
    optimizer = torch.optim.Adam(q_net.parameters(), lr=1e-3)
    replay, generator = model.replay, model._generators["replay"].clone_state()
    tau = model.step_size.entropy_weight
    for start in range(0, model.policy_update_interval, model.target_update_interval):
        target_net.load_state_dict(q_net.state_dict())
        steps = min(model.target_update_interval, model.policy_update_interval - start)
        for rows in torch.randint(replay.size(), (steps, model.batch_size), generator=generator):
            with torch.no_grad():
                log_pi = model.policy.logits(replay.next_observations[rows]).log_softmax(-1)
                q_next = target_net(replay.next_observations[rows]).mean(0).t()
                value = (log_pi.exp() * (q_next - tau * log_pi)).sum(-1)
                value *= ~replay.terminated[rows]
                target = (model.reward_scale * replay.rewards[rows] + model.gamma * value).float()
            q = q_net(replay.observations[rows]).gather(1, replay.actions[rows].expand(2, 1, -1)).squeeze(1)
            optimizer.zero_grad()
            half_mse(q, target).backward()
            optimizer.step()
    return {name: w.detach() for name, w in q_net.weights.items()}


@pytest.mark.parametrize("env_id", ["CartPole-v1", "MinAtar/Breakout-v1"])
def test_evaluation_equals_a_plain_one(env_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Distinct targets at once, closed-form gradients and the fused optimiser, against none of them."""
    model = small_model(env_id, learning_rate=1e-3).learn(800)
    compared = []
    evaluate = model.evaluate

    def both() -> None:
        model.policy.optimizer.state.clear()
        expected = plain_evaluation(model)
        evaluate()
        for name, weight in model.policy.q_net.weights.items():
            torch.testing.assert_close(weight.detach(), expected[name], rtol=1e-3, atol=1e-5)
        compared.append(model.iteration)

    monkeypatch.setattr(model, "evaluate", both)
    model.learn(model.policy_update_interval, reset_num_timesteps=False)
    assert compared
