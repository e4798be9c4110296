"""RAdam in one kernel is PyTorch's."""

from __future__ import annotations

import copy
import math

import pytest
import torch

from staq.networks.optimizer import RAdam, clipped_step, optimizer_named, rectification


def weights() -> list[torch.nn.Parameter]:
    torch.manual_seed(0)
    return [torch.nn.Parameter(torch.randn(shape)) for shape in ((7, 5), (5,), (3,))]


def test_it_takes_pytorchs_steps() -> None:
    """Also the first ones, which have no variance to go by; and where a weight has no gradient."""
    ours, theirs = weights(), weights()
    fused, plain = RAdam(ours, lr=0.01), torch.optim.RAdam(theirs, lr=0.01)
    for i in range(100):
        for a, b in list(zip(ours, theirs, strict=True))[:2]:
            a.grad = torch.randn_like(a)
            b.grad = a.grad.clone()
        if i == 50:
            fused.param_groups[0]["lr"] = plain.param_groups[0]["lr"] = 0.001
        fused.step()
        plain.step()
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b, msg=f"step {i}")
    assert fused.param_groups[0]["lr"] == 0.001, "what the user set is left as it was"


@pytest.mark.parametrize("max_norm", [0.5, 100.0])
def test_gradients_are_clipped_together(max_norm: float) -> None:
    """As by PyTorch before its own step; they themselves are left as they were."""
    ours, theirs, others = weights(), weights(), weights()
    fused, plain = RAdam(ours, lr=0.01), torch.optim.RAdam(theirs, lr=0.01)
    simple = torch.optim.SGD(others, lr=0.01)
    for _ in range(10):
        for a, b, c in zip(ours, theirs, others, strict=True):
            a.grad = torch.randn_like(a)
            b.grad, c.grad = a.grad.clone(), a.grad.clone()
        expected = [a - 0.01 * min(1.0, max_norm / _norm(others)) * a.grad for a in others if a.grad is not None]
        clipped_step(fused, max_norm)
        clipped_step(simple, max_norm)
        torch.nn.utils.clip_grad_norm_(theirs, max_norm)
        plain.step()
        for a, b, c, d in zip(ours, theirs, others, expected, strict=True):
            torch.testing.assert_close(a, b)
            torch.testing.assert_close(c, d)


def _norm(of: list[torch.nn.Parameter]) -> float:
    return math.sqrt(sum(w.grad.square().sum().item() for w in of if w.grad is not None))


def test_it_goes_on_from_its_state() -> None:
    ours, again = weights(), weights()
    first, second = RAdam(ours, lr=0.01), RAdam(again, lr=0.01)
    gradients = [[torch.randn_like(w) for w in ours] for _ in range(12)]

    def step(optimizer: RAdam, of: list[torch.nn.Parameter], i: int) -> None:
        for w, g in zip(of, gradients[i], strict=True):
            w.grad = g.clone()
        optimizer.step()

    for i in range(4):  # in the midst of the steps without a variance
        step(first, ours, i)
    with torch.no_grad():
        for a, b in zip(again, ours, strict=True):
            a.copy_(b)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for i in range(4, 12):
        step(first, ours, i)
        step(second, again, i)
    assert all(torch.equal(a, b) for a, b in zip(ours, again, strict=True))


def test_early_steps_are_shortened() -> None:
    factors = [rectification(t, 0.999) for t in (1, 5, 6, 100, 100_000)]
    assert factors[:2] == [0.0, 0.0]
    assert 0 < factors[2] < factors[3] < factors[4] == pytest.approx(1.0, abs=1e-3)


def test_optimisers_by_name() -> None:
    assert optimizer_named("RAdam") is RAdam
    assert optimizer_named("SGD") is torch.optim.SGD
    with pytest.raises(ValueError, match="optimizer_class='Adm'"):
        optimizer_named("Adm")
