"""Exports: the same policy elsewhere, without unpickling."""

from __future__ import annotations

import functools
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from safetensors import SafetensorError
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from staq import BoundaryActions, StaQ, load_policy
from staq.storage.export import DESCRIPTION, WEIGHTS, describe_space, space_from
from tests.conftest import SMALL, Endless, TinyExtractor, small_model


@pytest.mark.parametrize(
    ("env_id", "arguments"),
    [
        ("CartPole-v1", {}),
        ("CartPole-v1", {"memory_size": None}),
        ("MinAtar/Breakout-v1", {}),
    ],
)
@pytest.mark.parametrize("steps", [0, 800])
def test_the_export_is_the_same_policy(
    tmp_path: Path, env_id: str, arguments: dict[str, Any], steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = small_model(env_id, **arguments)
    if steps:
        model.learn(steps)
    model.export(tmp_path / "policy")
    assert sorted(path.name for path in (tmp_path / "policy").iterdir()) == [DESCRIPTION, WEIGHTS]

    def forbidden(*_: Any, **__: Any) -> None:
        raise AssertionError("loading an export must not unpickle")

    monkeypatch.setattr(pickle, "load", forbidden)
    monkeypatch.setattr(pickle, "loads", forbidden)
    monkeypatch.setattr(pickle, "Unpickler", forbidden)
    policy, description = load_policy(tmp_path / "policy")
    obs = np.stack([model.observation_space.sample() for _ in range(8)])
    np.testing.assert_array_equal(policy.action_probabilities(obs), model.action_probabilities(obs))
    np.testing.assert_array_equal(policy.predict(obs, deterministic=True)[0], model.predict(obs, deterministic=True)[0])
    assert description["environment"] == env_id
    assert policy.observation_space == model.observation_space


def test_only_an_earlier_export_is_replaced(tmp_path: Path) -> None:
    model = small_model()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    for taken in ("mine", "mine/thesis.txt"):
        with pytest.raises(FileExistsError, match="something other than an exported policy"):
            model.export(tmp_path / taken)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"
    model.export(tmp_path / "policy")
    model.learn(400)
    model.export(tmp_path / "policy")
    assert load_policy(tmp_path / "policy")[1]["stack"]["n_pushed"] == 2


def test_code_is_not_exported(tmp_path: Path) -> None:
    model = small_model(policy_kwargs={"features_extractor_class": TinyExtractor})
    with pytest.raises(ValueError, match="does not carry"):
        model.export(tmp_path / "policy")


def test_an_activation_that_has_no_name_is_not_exported(tmp_path: Path) -> None:
    leaky = functools.partial(torch.nn.LeakyReLU, 0.9)
    with pytest.raises(ValueError, match="LeakyReLU.*default arguments"):
        small_model(policy_kwargs={"activation_fn": leaky}).export(tmp_path / "policy")
    small_model(policy_kwargs={"activation_fn": torch.nn.LeakyReLU}).export(tmp_path / "policy")


def test_an_export_replaces_the_one_before_it(tmp_path: Path) -> None:
    model = small_model()
    for _ in range(2):
        model.learn(200)
        model.export(tmp_path / "policy")
    assert [path.name for path in tmp_path.iterdir()] == ["policy"]
    obs = model.replay.observations[:5].numpy()
    policy, _ = load_policy(tmp_path / "policy")
    np.testing.assert_array_equal(policy.action_probabilities(obs), model.action_probabilities(obs))


def test_a_full_disk_is_named_and_keeps_the_export_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_model()
    model.export(tmp_path / "policy")

    def full(*_: Any, **__: Any) -> None:
        raise SafetensorError("No space left on device")

    monkeypatch.setattr("staq.storage.export.save_file", full)
    with pytest.raises(OSError, match="could not be exported to .*policy: No space left"):
        model.export(tmp_path / "policy")
    load_policy(tmp_path / "policy")
    assert [path.name for path in tmp_path.iterdir()] == ["policy"]


def test_normalised_observations_are_mentioned(tmp_path: Path) -> None:
    env = VecNormalize(make_vec_env("CartPole-v1", 2))
    with pytest.warns(UserWarning, match="export its statistics too"):
        StaQ("MlpPolicy", env, **SMALL).export(tmp_path / "policy")


def test_damage_and_foreign_files_are_named(tmp_path: Path) -> None:
    folder = small_model().export(tmp_path / "policy")
    with pytest.raises(FileNotFoundError, match="not an exported policy"):
        load_policy(tmp_path)
    with pytest.raises(FileNotFoundError, match="run by onnxruntime"):
        load_policy(tmp_path / "policy.onnx")
    description = json.loads((folder / DESCRIPTION).read_text())
    for change, message in (
        ({"format": "onnx"}, "format 'onnx'"),
        ({"net_arch": [3]}, "The weights do not fit their own description: q_net.mlp.0.bias"),
        ({"activation_fn": "functional"}, "no layer of torch.nn"),
        ({"stack": None}, "does not fit its own description"),
        ({"action_space": {"type": "Sphere"}}, "'Sphere' is no space"),
    ):
        (folder / DESCRIPTION).write_text(json.dumps(description | change))
        with pytest.raises(ValueError, match=message):
            load_policy(folder)
    for foreign in ("[]", '{"format": "staq-policy-1"}'):
        (folder / DESCRIPTION).write_text(foreign)
        with pytest.raises(ValueError, match=r"has format None|does not fit"):
            load_policy(folder)
    (folder / DESCRIPTION).write_text(json.dumps(description))
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:100])
    with pytest.raises(ValueError, match="is damaged"):
        load_policy(folder)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-np.inf, np.inf, (3,)),
        spaces.Box(np.array([-1.0, -np.inf]), np.array([2.0, 5.0]), dtype=np.float64),
        spaces.Box(0, 255, (84, 84, 4), dtype=np.uint8),
        spaces.Box(0, 1, (10, 10, 4), dtype=bool),  # type: ignore[arg-type]
        spaces.Discrete(5, start=2),
        spaces.MultiDiscrete([3, 4]),
        spaces.MultiDiscrete([3, 4], start=[1, -1]),
        spaces.MultiBinary(6),
    ],
    ids=str,
)
def test_spaces_round_trip_through_json(space: spaces.Space[Any]) -> None:
    described = json.loads(json.dumps(describe_space(space), allow_nan=False))
    assert space_from(described) == space


@pytest.mark.parametrize(
    "space", [spaces.Box(-1, 2, (2,)), spaces.MultiDiscrete([2, 4], start=[1, 0]), spaces.MultiBinary(3)], ids=str
)
def test_policies_with_several_parts_are_exported_whole(tmp_path: Path, space: spaces.Space[Any]) -> None:
    model = StaQ("MlpPolicy", DummyVecEnv([lambda: Endless(action_space=space)] * 4), **SMALL, n_atoms=5)
    model.learn(400)
    policy, description = load_policy(model.export(tmp_path / "policy"))
    obs = np.random.default_rng(0).uniform(-1, 1, (20, 3)).astype(np.float32)
    np.testing.assert_allclose(policy.action_probabilities(obs), model.action_probabilities(obs), atol=1e-12)
    np.testing.assert_array_equal(policy.predict(obs, deterministic=True)[0], model.predict(obs, deterministic=True)[0])
    assert not description["boundary_actions"]


def test_an_export_says_that_actions_were_the_boundary(tmp_path: Path) -> None:
    model = StaQ("MlpPolicy", make_vec_env("Pendulum-v1", 4, wrapper_class=BoundaryActions), **SMALL)
    _, description = load_policy(model.export(tmp_path / "policy"))
    assert description["boundary_actions"]
    assert description["environment"] == "Pendulum-v1"


def test_numbers_and_spaces_of_other_types_are_kept(tmp_path: Path) -> None:
    space: Any = spaces.MultiDiscrete([3, 4], dtype=np.int32)
    model = StaQ("MlpPolicy", Endless(action_space=space), **SMALL | {"n_atoms": np.int64(5)})
    policy, description = load_policy(model.export(tmp_path / "policy"))
    assert policy.action_space == space
    assert policy.action_space.dtype == np.int32
    assert description["n_atoms"] == 5
