"""The networks that learn: their gradients one by one, and where they begin."""

from __future__ import annotations

import torch

from staq.networks.architecture import OUTPUT_WEIGHT
from staq.networks.conv_mlp import ConvMlp
from staq.networks.ensemble import QEnsemble
from tests.conftest import BOARD, VECTOR
from tests.networks.conftest import plain_network


def test_gradients_equal_one_by_one() -> None:
    torch.manual_seed(0)
    architecture = ConvMlp(BOARD, 3, [8], conv_arch=[(4, 3, 1)])
    ensemble = QEnsemble(architecture, 2)
    with torch.no_grad():
        ensemble.weights[OUTPUT_WEIGHT].normal_()
    obs = torch.rand(5, 10, 10, 4) > 0.5
    ensemble(obs).square().sum().backward()
    for i in range(2):
        one = {name: w[i].detach().clone().requires_grad_() for name, w in ensemble.weights.items()}
        plain_network(architecture, one, obs).square().sum().backward()
        for name, w in ensemble.weights.items():
            assert w.grad is not None
            torch.testing.assert_close(w.grad[i], one[name].grad, rtol=1e-4, atol=1e-4)


def test_the_first_policy_is_uniform_and_networks_differ() -> None:
    ensemble = QEnsemble(ConvMlp(VECTOR, 3, [8]), 2)
    assert torch.count_nonzero(ensemble(torch.randn(4, 5))) == 0
    assert not torch.equal(*ensemble.weights["mlp.0.weight"])
