"""Networks and optimisers of a user's choice, in StaQ and its variants."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import FakeImageEnv
from stable_baselines3.common.torch_layers import FlattenExtractor, NatureCNN
from stable_baselines3.common.vec_env import DummyVecEnv
from torch import nn

from staq import ACMProj, NatGrad, StaQ
from staq.loop import PolicyMirrorDescent
from staq.networks.architecture import OUTPUT_WEIGHT
from tests.conftest import SMALL, Endless, TinyExtractor


def small(algorithm: type[PolicyMirrorDescent], policy_kwargs: dict[str, Any], policy: str = "MlpPolicy") -> Any:
    """In a hurry, so that there is something to see after two iterations."""
    settings = {name: value for name, value in SMALL.items() if name != "memory_size" or algorithm is StaQ}
    settings |= {"learning_rate": 1e-2}
    return algorithm(policy, make_vec_env("CartPole-v1", 4, seed=7), policy_kwargs=policy_kwargs, **settings)


class FrozenExtractor(TinyExtractor):
    """As one loads a pretrained encoder; and with a parameter that nothing uses."""

    def __init__(self, observation_space: spaces.Space[Any]) -> None:
        super().__init__(observation_space)
        self.unused = nn.Parameter(torch.ones(3))
        self.net[0].requires_grad_(False)


@pytest.mark.parametrize("algorithm", [StaQ, ACMProj, NatGrad])
def test_what_is_frozen_is_not_trained(algorithm: type[PolicyMirrorDescent]) -> None:
    model = small(algorithm, {"net_arch": [8], "features_extractor_class": FrozenExtractor})
    actor = getattr(model.policy.improvement, "actor", model.policy.q_net)
    before = [{name: w.detach().clone() for name, w in net.weights.items()} for net in (model.policy.q_net, actor)]
    model.learn(400)
    for net, earlier in zip((model.policy.q_net, actor), before, strict=True):
        changed = {name for name, w in net.weights.items() if not torch.equal(w, earlier[name])}
        assert not any(name.startswith("0.net.0") for name in changed)
        assert {"0.net.1.weight", "1.weight", OUTPUT_WEIGHT} <= changed


def test_an_extractor_stands_in_for_the_convolutions_only() -> None:
    """As in SB3, fully connected layers follow by default, but for NatureCNN, which has its own."""
    for policy, extractor, hidden in (("MlpPolicy", FlattenExtractor, 256), ("CnnPolicy", TinyExtractor, 128)):
        model = small(StaQ, {"features_extractor_class": extractor}, policy)
        assert model.policy.architecture.hidden_size == hidden
    linear = small(StaQ, {"features_extractor_class": FlattenExtractor, "net_arch": []}).learn(400)
    assert linear.policy.architecture.hidden_size == 4
    assert linear.logits(np.ones(4, dtype=np.float32)).any()
    images = DummyVecEnv([lambda: Endless(observation_space=spaces.Box(0, 255, (36, 36, 3), np.uint8))])
    model = StaQ("CnnPolicy", images, policy_kwargs={"features_extractor_class": NatureCNN}, **SMALL)
    assert not any(name.startswith("1.") for name in model.policy.q_net.names)


def test_large_images_are_known_by_their_shape() -> None:
    """Floats are no images to SB3, which leaves their axes as they are; boards of ten planes are no such images."""
    for shape, first in (((3, 40, 48), True), ((40, 48, 3), False), ((10, 10, 10), False)):
        env = DummyVecEnv([lambda shape=shape: Endless(observation_space=spaces.Box(-1, 1, shape))])
        model = StaQ("CnnPolicy", env, policy_kwargs={"features_extractor_kwargs": {"features_dim": 24}}, **SMALL)
        assert model.policy.architecture.channels_last is not first
        assert model.policy.architecture.hidden_size == (128 if shape == (10, 10, 10) else 24)


def test_an_activation_may_be_named() -> None:
    model = small(StaQ, {"activation_fn": "Tanh"})
    assert type(model.policy.architecture.activation) is nn.Tanh
    with pytest.raises(ValueError, match="'Tan' is no layer of torch.nn"):
        small(StaQ, {"activation_fn": "Tan"})


def test_the_actor_has_the_critics_optimiser() -> None:
    kwargs = {"net_arch": [8], "optimizer_class": torch.optim.SGD, "optimizer_kwargs": {"momentum": 0.5}}
    model = small(ACMProj, kwargs)
    for optimizer in (model.policy.optimizer, model.policy.improvement.optimizer):
        assert isinstance(optimizer, torch.optim.SGD)
        assert optimizer.param_groups[0]["momentum"] == 0.5
    model.learn(400)


@pytest.mark.parametrize("policy", ["MlpPolicy", "CnnPolicy"])
def test_critics_play_greedily_and_are_saved_alone(policy: str, tmp_path: Path) -> None:
    """SB3's DQN has them as ``q_net``."""
    board = partial(FakeImageEnv, screen_height=10, screen_width=10, n_channels=1, discrete=True)
    env = DummyVecEnv([board if policy == "CnnPolicy" else Endless] * 4)
    model = StaQ(policy, env, **SMALL).learn(200)
    obs = np.stack([model.observation_space.sample() for _ in range(5)])
    q = model.q_values(obs)[0].mean(1)
    model.q_net.save(tmp_path / "critics")
    again = type(model.q_net).load(tmp_path / "critics")
    for critics in (model.q_net, again):
        assert (critics.predict(obs)[0] == q.argmax(-1)).all()
        assert critics.predict(obs[0])[0] == q[0].argmax()
    model.save(tmp_path / "model")
    with pytest.raises(ValueError, match="holds no Critics"):
        type(model.q_net).load(tmp_path / "model")


def test_numbers_that_are_no_pixels_are_refused_as_images() -> None:
    """Nothing scales them; SB3 refuses them too, by an assertion."""
    env = DummyVecEnv([lambda: Endless(observation_space=spaces.Box(0, 255, (10, 10, 1)))])
    for kind in (ValueError, AssertionError):
        with pytest.raises(kind, match="float32 from 0 to 255.*normalize_images"):
            StaQ("CnnPolicy", env, **SMALL)
    StaQ("CnnPolicy", env, policy_kwargs={"normalize_images": False}, **SMALL)
