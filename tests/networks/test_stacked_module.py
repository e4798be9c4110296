"""A module of the user's own, stacked, against itself one by one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gymnasium import spaces
from torch import nn

from staq.networks.architecture import OUTPUT_BIAS, OUTPUT_WEIGHT
from staq.policies import _custom_architecture
from tests.conftest import VECTOR, TinyExtractor, random_weights


def test_a_custom_module_stacks() -> None:
    torch.manual_seed(0)
    architecture = _custom_architecture(VECTOR, 3, TinyExtractor, {}, [5], nn.ReLU, True)
    weights = random_weights(architecture, 4)
    obs = torch.randn(6, 5)
    q = architecture.q_values(weights, obs)
    for i in range(4):
        module = architecture.build()
        module.load_state_dict({name: w[i] for name, w in weights.items() if not name.startswith("output")})
        one = nn.functional.linear(module(obs), weights[OUTPUT_WEIGHT][i], weights[OUTPUT_BIAS][i])
        torch.testing.assert_close(q[i].t(), one, rtol=1e-4, atol=1e-5)


def test_batch_norm_is_refused() -> None:
    class Normed(TinyExtractor):
        def __init__(self, observation_space: spaces.Space[Any]) -> None:
            super().__init__(observation_space)
            self.norm = nn.BatchNorm1d(6)

    with pytest.raises(ValueError, match="LayerNorm"):
        _custom_architecture(VECTOR, 3, Normed, {}, [], nn.ReLU, True)
