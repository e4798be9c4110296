"""Written-out back-propagation against autograd's, and the regression's gradient against its loss."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from staq.networks.conv_mlp import ConvMlp
from staq.networks.ensemble import QEnsemble
from staq.networks.gradients import Autograd, ClosedForm, backpropagation, differentiate
from tests.conftest import BOARD, VECTOR


def ensemble(n: int, **arguments: Any) -> QEnsemble:
    torch.manual_seed(0)
    made = QEnsemble(ConvMlp(n_actions=3, **arguments), n)
    with torch.no_grad():
        for weight in made.weights.values():  # no layer is left as it begins, zero or one
            weight += 0.5 * torch.randn_like(weight)
    return made


@pytest.mark.parametrize("n_networks", [1, 2, 3])
@pytest.mark.parametrize(
    "arguments",
    [
        {"observation_space": VECTOR, "net_arch": [8]},
        {"observation_space": VECTOR, "net_arch": [8, 7, 6]},
        {"observation_space": VECTOR, "net_arch": []},
        {"observation_space": BOARD, "net_arch": [16], "conv_arch": [(4, 3, 1)]},
        {"observation_space": BOARD, "net_arch": [9, 5], "conv_arch": [(4, 4, 3)]},
        {"observation_space": BOARD, "net_arch": [], "conv_arch": [(4, 3, 1)]},
        {"observation_space": VECTOR, "net_arch": [8, 32], "norm": "layer"},
        {"observation_space": BOARD, "net_arch": [9, 16], "conv_arch": [(4, 3, 1)], "norm": "layer"},
        {"observation_space": BOARD, "net_arch": [32], "conv_arch": [(16, 3, 1)], "norm": "layer"},
    ],
)
@pytest.mark.parametrize("threads", [1, 2])
def test_closed_form_equals_autograd(n_networks: int, arguments: dict[str, Any], threads: int) -> None:
    """Twice on the same buffers, so that nothing of the first batch is left in the second."""
    torch.set_num_threads(threads)  # on several, every network has an input of its own
    networks, reference = ensemble(n_networks, **arguments), ensemble(n_networks, **arguments)
    closed = backpropagation(networks, 32)
    assert isinstance(closed, ClosedForm)
    for _ in range(2):
        obs = torch.rand(32, 10, 10, 4) > 0.5 if arguments["observation_space"] is BOARD else torch.randn(32, 5)
        error = torch.randn(n_networks, 3, 32)
        plain = Autograd(reference)
        torch.testing.assert_close(closed.forward(obs), reference(obs).detach(), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(closed.outputs, plain.forward(obs), rtol=1e-4, atol=1e-5)
        closed.backward(error)
        plain.backward(error)
        for name, weight in reference.weights.items():
            torch.testing.assert_close(networks.weights[name].grad, weight.grad, rtol=1e-3, atol=1e-4)


def test_every_network_can_have_a_batch_of_its_own() -> None:
    networks, reference = (ensemble(3, observation_space=VECTOR, net_arch=[8, 7]) for _ in range(2))
    own, error = torch.randn(3, 32, 5), torch.randn(3, 3, 32)
    closed = ClosedForm(networks, 32, shared=False)
    q = torch.stack([reference(obs)[i] for i, obs in enumerate(own)])
    torch.testing.assert_close(closed.forward_inputs(own), q.detach(), rtol=1e-4, atol=1e-5)
    closed.backward(error)
    q.backward(error)
    for name, weight in reference.weights.items():
        torch.testing.assert_close(networks.weights[name].grad, weight.grad, rtol=1e-3, atol=1e-4)


def test_a_losss_gradient_through_the_closed_form_is_autograds() -> None:
    networks, reference = (ensemble(2, observation_space=VECTOR, net_arch=[8]) for _ in range(2))
    obs, target = torch.randn(32, 5), torch.randn(2, 3, 32)

    def loss(q: torch.Tensor) -> torch.Tensor:
        return (q - target).abs().pow(1.5).mean() + q.logsumexp(1).sum()

    closed = backpropagation(networks, 32)
    found = closed.forward(obs).clone()
    value, error = differentiate(loss, found)
    closed.backward(error)
    q = reference(obs)
    expected = loss(q)
    expected.backward()
    torch.testing.assert_close(value, expected.detach())
    torch.testing.assert_close(found, q.detach())
    for name, weight in reference.weights.items():
        torch.testing.assert_close(networks.weights[name].grad, weight.grad, rtol=1e-4, atol=1e-6)


def test_what_has_no_closed_form_uses_autograd() -> None:
    tanh = ensemble(2, observation_space=VECTOR, net_arch=[8], activation_fn=nn.Tanh)
    deep = ensemble(2, observation_space=BOARD, net_arch=[8], conv_arch=[(4, 3, 1), (4, 3, 1)])
    assert all(isinstance(backpropagation(e, 8), Autograd) for e in (tanh, deep))


def test_the_optimiser_sees_the_gradient() -> None:
    networks = ensemble(2, observation_space=VECTOR, net_arch=[8])
    optimizer = torch.optim.SGD(networks.parameters(), lr=0.1)
    before = {name: w.detach().clone() for name, w in networks.weights.items()}
    closed = backpropagation(networks, 4)
    closed.backward(differentiate(lambda q: (q - 1).square().sum(), closed.forward(torch.randn(4, 5)))[1])
    optimizer.step()
    for name, weight in networks.weights.items():
        torch.testing.assert_close(weight.detach(), before[name] - 0.1 * weight.grad)
