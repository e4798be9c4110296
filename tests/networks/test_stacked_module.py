"""A module of the user's own, stacked, against itself one by one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gymnasium import spaces
from torch import nn

from staq.networks.architecture import OUTPUT_BIAS, OUTPUT_WEIGHT
from staq.networks.conv_mlp import ConvMlp
from staq.networks.ensemble import QEnsemble
from staq.networks.gradients import backpropagation
from staq.networks.stacked_module import over_extractor
from tests.conftest import VECTOR, TinyExtractor, lambda_model, random_weights


def test_a_custom_module_stacks() -> None:
    torch.manual_seed(0)
    architecture = over_extractor(VECTOR, 3, TinyExtractor, {}, [5], nn.ReLU, True)
    weights = random_weights(architecture, 4)
    obs = torch.randn(6, 5)
    q = architecture.q_values(weights, obs)
    for i in range(4):
        module = architecture.build()
        module.load_state_dict({name: w[i] for name, w in weights.items() if not name.startswith("output")})
        one = nn.functional.linear(module(obs), weights[OUTPUT_WEIGHT][i], weights[OUTPUT_BIAS][i])
        torch.testing.assert_close(q[i].t(), one, rtol=1e-4, atol=1e-5)


class Normed(TinyExtractor):
    """With statistics that follow the batches it learns from."""

    def __init__(self, observation_space: spaces.Space[Any], momentum: float | None = 0.1) -> None:
        super().__init__(observation_space)
        self.norm = nn.BatchNorm1d(6, momentum=momentum)

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return self.norm(super().forward(obs))


def test_batch_statistics_follow_the_networks_that_learn() -> None:
    """As those of the module by itself, trained on the same batches; and a frozen network keeps what it had."""
    torch.manual_seed(0)
    architecture = over_extractor(VECTOR, 3, Normed, {}, [5], nn.ReLU, True)
    learning, frozen = QEnsemble(architecture, 2), QEnsemble(architecture, 2).requires_grad_(False)
    modules = []
    for i in range(2):
        module = architecture.build()
        trunk = {n: w[i].detach() for n, w in learning.weights.items() if not n.startswith("output")}
        module.load_state_dict(trunk, strict=False)
        modules.append(module)
    before = {name: w.clone() for name, w in frozen.weights.items()}
    for _ in range(3):
        obs = torch.randn(32, 5) * 2 + 1
        backpropagation(learning, 32).forward(obs)
        backpropagation(frozen, 32).forward(obs)
        hidden = torch.stack([module.train()(obs) for module in modules])
    assert all(torch.equal(before[name], w) for name, w in frozen.weights.items())
    (statistic,) = (name for name in learning.names if name.endswith("running_var"))
    for i, module in enumerate(modules):
        torch.testing.assert_close(learning.weights[statistic][i], dict(module.named_buffers())[statistic])
    assert hidden.shape == (2, 32, 5)
    # Where nobody learns, an observation's q does not depend on its company.
    q = architecture.q_values(learning.weights, obs)
    torch.testing.assert_close(architecture.q_values(learning.weights, obs[:1]), q[..., :1])
    one_by_one = torch.stack([module.eval()(obs) for module in modules])
    torch.testing.assert_close(architecture.hidden(learning.weights, obs), one_by_one)


def test_the_features_extractor_can_be_looked_at() -> None:
    """Under SB3's name; of the network as it is, not as it was."""
    torch.manual_seed(0)
    networks = QEnsemble(over_extractor(VECTOR, 3, Normed, {}, [5], nn.ReLU, True), 2)
    extractor: Any = networks.features_extractor
    assert isinstance(extractor, Normed)
    backpropagation(networks, 32).forward(torch.randn(32, 5) + 1)
    (mean,) = (w for name, w in networks.weights.items() if name.endswith("running_mean"))
    assert mean.abs().max() > 0
    assert torch.equal(extractor.norm.running_mean, mean[0])
    with pytest.raises(AttributeError):
        _ = QEnsemble(ConvMlp(VECTOR, 3, [5]), 2).features_extractor


def test_statistics_without_a_momentum_are_refused() -> None:
    with pytest.raises(ValueError, match="momentum"):
        over_extractor(VECTOR, 3, Normed, {"momentum": None}, [], nn.ReLU, True)


@pytest.mark.parametrize("evaluation", ["replay", "lambda"])
@pytest.mark.parametrize("algorithm", ["StaQ", "ACMProj", "NatGrad"])
def test_an_agent_with_batch_norm_trains(algorithm: str, evaluation: str) -> None:
    arguments: dict[str, Any] = {"actor_steps": 4} if algorithm == "ACMProj" else {}
    if evaluation == "replay":
        arguments |= {"buffer_size": 400, "gradient_steps": 10}
    model = lambda_model(
        algorithm=algorithm,
        evaluation=evaluation,
        policy_kwargs={"features_extractor_class": Normed, "net_arch": [8]},
        **arguments,
    )
    model.learn(400)
    weights = model.policy.q_net.weights
    (statistic,) = (name for name in weights if name.endswith("running_mean"))
    assert weights[statistic].abs().max() > 0
    if algorithm == "StaQ":
        stack = model.policy.improvement.stack
        assert not torch.equal(stack.ensemble(stack.entries[0])[statistic], torch.zeros(1))
