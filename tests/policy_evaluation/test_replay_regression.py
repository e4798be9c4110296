"""What makes it fast changes nothing, and never waits for the device in the gradient loop."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from staq import StaQ
from staq.soft_bellman import half_mse
from tests.conftest import small_model

# Operators whose result, or its shape, has to be known to the host before it can go on.
READS = {"_local_scalar_dense", "nonzero", "_unique2", "unique_dim", "masked_select", "equal", "is_nonzero"}


class HostReads(TorchDispatchMode):
    """Notes every operator that would make the host wait for a GPU; seen from below, so on a CPU too."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        masked = name in ("index", "index_put_", "index_put") and any(
            i is not None and i.dtype == torch.bool for i in args[1]
        )
        if name in READS or masked:
            self.found.append(name)
        return func(*args, **(kwargs or {}))


@contextmanager
def host_reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Every value that is read back, by an operator or straight from memory."""
    with HostReads() as mode, monkeypatch.context() as patch:
        for name in ("tolist", "numpy", "cpu"):
            method = getattr(torch.Tensor, name)
            patch.setattr(
                torch.Tensor,
                name,
                lambda *a, _method=method, _name=name, **k: mode.found.append(_name) or _method(*a, **k),
            )
        yield mode.found


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
    """One read per target window: how many distinct transitions were drawn."""
    model = small_model(env_id, **arguments).learn(200)
    windows = 0
    targets = model._targets

    def counted(batches: torch.Tensor) -> torch.Tensor:
        nonlocal windows
        windows += 1
        return targets(batches)

    model._targets = counted  # type: ignore[method-assign]
    with host_reads(monkeypatch) as found:
        model.evaluate()
    assert windows > 1
    assert found == ["_unique2"] * windows


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
