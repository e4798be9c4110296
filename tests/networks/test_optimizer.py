"""The lean Adam against PyTorch's."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from staq.networks.optimizer import FusedAdam


def parameters() -> list[torch.nn.Parameter]:
    torch.manual_seed(0)
    return [torch.nn.Parameter(torch.randn(shape)) for shape in ((2, 5, 3), (2, 3), (7,))]


def stepped(optimizer: torch.optim.Optimizer, params: list[torch.nn.Parameter], steps: int, seed: int = 1) -> None:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        for p in params:
            p.grad = torch.randn(p.shape, generator=generator)
        optimizer.step()


@pytest.mark.parametrize("more", [{}, {"weight_decay": 0.1}, {"amsgrad": True}, {"betas": (0.8, 0.99), "eps": 1e-3}])
def test_it_is_adam(more: dict[str, Any]) -> None:
    ours, theirs = parameters(), parameters()
    stepped(FusedAdam(ours, lr=0.01, **more), ours, 20)
    stepped(torch.optim.Adam(theirs, lr=0.01, **more), theirs, 20)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_a_parameter_without_a_gradient_stays_as_it_is() -> None:
    ours, theirs = parameters(), parameters()
    for params, optimizer in ((ours, FusedAdam(ours, lr=0.01)), (theirs, torch.optim.Adam(theirs, lr=0.01))):
        stepped(optimizer, params[1:], 5)
        stepped(optimizer, params, 5)  # and may get one later
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_its_state_is_adams() -> None:
    """Saved after ten steps and taken over by a new one; the learning rate may change in between."""
    whole, parts = parameters(), parameters()
    optimizer = FusedAdam(whole, lr=0.01)
    stepped(optimizer, whole, 10)
    first = FusedAdam(parts, lr=0.01)
    stepped(first, parts, 10)
    second = FusedAdam(parts, lr=0.5)
    second.load_state_dict(first.state_dict())
    for each in (optimizer, second):
        each.param_groups[0]["lr"] = 0.003
    stepped(optimizer, whole, 10, seed=2)
    stepped(second, parts, 10, seed=2)
    for a, b in zip(whole, parts, strict=True):
        assert torch.equal(a, b)
