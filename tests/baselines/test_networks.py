"""StaQ's network for small boards in SB3's models."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from stable_baselines3.common.envs import FakeImageEnv

from staq.baselines import build
from staq.baselines.networks import SmallImage
from tests.baselines.conftest import built


def test_trpos_value_network_learns_on_a_board() -> None:
    """sb3-contrib lets the critic train what it does not share with the actor: more than its last layer."""
    model = built("trpo", "MinAtar/Breakout-v1", n_steps=64, batch_size=32)
    before = model.policy.mlp_extractor.value_net[0].weight.detach().clone()
    model.learn(64)
    assert not torch.equal(model.policy.mlp_extractor.value_net[0].weight, before)


def test_small_boards_of_any_size() -> None:
    from gymnasium import spaces

    space = spaces.Box(0, 1, (7, 9, 2), dtype=np.uint8)
    assert SmallImage(space)(torch.rand(3, 7, 9, 2)).shape == (3, 16 * 5 * 7)


def test_boards_that_sb3_turns_are_read_as_they_come() -> None:
    """uint8 in 0..255 is an image to SB3, which puts its channels first."""
    env = FakeImageEnv(screen_height=12, screen_width=10, n_channels=4, discrete=True)
    model: Any = build("dqn", "CnnPolicy", env, {"buffer_size": 50, "learning_starts": 10}, 100, seed=0, device="cpu")
    convolution = model.q_net.features_extractor.layers[0]
    seen: list[torch.Size] = []
    convolution.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].shape))
    model.learn(20)
    assert convolution.in_channels == 4
    assert {shape[1:] for shape in seen} == {torch.Size((4, 12, 10))}
