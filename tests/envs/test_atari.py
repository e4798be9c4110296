"""Atari's games: what an observation is, seeds, and a first iteration by the preset."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from staq import StaQ
from staq.cli import presets
from staq.envs.make import make_env, make_envs

PONG = "ALE/Pong-v5"


def test_observations_are_four_small_frames() -> None:
    env = make_env(PONG)
    obs, _ = env.reset(seed=0)
    assert (obs.shape, obs.dtype) == ((4, 84, 84), np.uint8)
    assert obs in env.observation_space
    assert env.unwrapped.ale.getFloat("repeat_action_probability") == 0.25  # type: ignore[attr-defined]
    after = env.step(0)[0]
    assert np.array_equal(after[:3], obs[1:]), "the oldest frame goes, the newest comes last"


def test_a_seed_fixes_a_game() -> None:
    def played() -> list[np.ndarray]:
        env = make_env(PONG)
        found = [env.reset(seed=3)[0]]
        return found + [env.step(action % 6)[0] for action in range(60)]

    np.testing.assert_array_equal(played(), played())


def test_the_preset_trains() -> None:
    preset = presets.for_environment(PONG, evaluation="lambda")
    assert preset.name == "atari-lambda"
    small = preset.hyperparameters | {"policy_update_interval": 16, "batch_size": 8}
    model = StaQ(preset.policy, make_envs(PONG, 4), seed=0, device="cpu", **small)
    before = {name: w.clone() for name, w in model.policy.q_net.weights.items()}
    model.learn(16)
    assert model.policy.architecture.trunk_shapes["mlp.0"] == (3136, 512)  # type: ignore[attr-defined]
    assert not any(np.array_equal(before[name], w.detach()) for name, w in model.policy.q_net.weights.items())


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(ModuleNotFoundError, match=r"ALE/Pong-v5 needs .* pip install 'staq\[atari\]'"):
        make_env(PONG)
