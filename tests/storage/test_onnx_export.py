"""ONNX graphs: the same policy in onnxruntime, whatever observations, actions and networks are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.torch_layers import NatureCNN

from staq import StaQ
from staq.policies import StaQPolicy
from staq.storage.export import describe_space
from staq.storage.onnx_export import export_onnx
from tests.conftest import BOARD, Endless, random_weights, small_model

pytest.importorskip("onnxscript")
onnxruntime = pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:onnxscript.*")

IMAGE = spaces.Box(0, 255, (3, 36, 36), dtype=np.uint8)
PARTS = spaces.Dict({"speed": spaces.Box(-1, 1, (3,), dtype=np.float64), "gear": spaces.Discrete(4, start=1)})
IMAGE_AND_PARTS = spaces.Dict({"image": IMAGE, **PARTS})


def policy_with_networks(
    observations: spaces.Space[Any], actions: spaces.Space[Any], n: int = 3, scale: float = 20.0, **policy_kwargs: Any
) -> StaQPolicy:
    """A policy of n random ensembles whose logits are large where the scale is."""
    images = observations in (BOARD, IMAGE)
    kind = "MultiInputPolicy" if isinstance(observations, spaces.Dict) else "CnnPolicy" if images else "MlpPolicy"
    env, narrow = Endless(observation_space=observations, action_space=actions), {"net_arch": [16], **policy_kwargs}
    model = StaQ(kind, env, memory_size=None, policy_kwargs=narrow, seed=1, device="cpu")  # type: ignore[arg-type]
    for _ in range(n):
        weights = random_weights(model.policy.architecture, 2)
        weights |= {name: scale * w for name, w in weights.items() if name.startswith("output.")}
        model.policy.improvement.stack.push(weights, 0.9)  # type: ignore[union-attr, operator]
    return model.policy


def batch(space: spaces.Space[Any], n: int) -> Any:
    space.seed(0)
    samples = [space.sample() for _ in range(n)]
    if isinstance(space, spaces.Dict):
        return {key: np.stack([sample[key] for sample in samples]) for key in space.spaces}
    return np.stack(samples)


def assert_same(policy: StaQPolicy, file: Path, masked: bool = False) -> None:
    session = onnxruntime.InferenceSession(file)
    for n in (1, 50):
        obs = batch(policy.observation_space, n)
        given = dict(obs) if isinstance(obs, dict) else {"observation": obs}
        masks = None
        if masked:
            masks = given["action_masks"] = np.random.default_rng(0).random((n, policy.architecture.n_actions)) < 0.5
            masks[:, policy.codec.factors.first] = True
        logits, probabilities, action = session.run(None, given)
        expected = policy.logits(obs, masks)
        assert np.std(policy.action_probabilities(obs, masks)) > 0.01
        np.testing.assert_allclose(probabilities, policy.action_probabilities(obs, masks), atol=1e-4)
        np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4)
        chosen = policy.predict(obs, deterministic=True, action_masks=masks)[0]
        assert action.dtype == chosen.dtype
        assert action.shape == chosen.shape
        np.testing.assert_array_equal(action, chosen)


VECTOR = spaces.Box(-1, 1, (5,))


@pytest.mark.parametrize(
    ("observations", "actions", "policy_kwargs"),
    [
        pytest.param(
            VECTOR, spaces.Discrete(3, start=2), {"norm": "layer", "activation_fn": "ELU"}, marks=pytest.mark.slow
        ),
        (BOARD, spaces.MultiDiscrete([3, 2]), {"norm": "layer"}),
        (PARTS, spaces.Box(-1, 1, (2,)), {}),
        pytest.param(VECTOR, spaces.Discrete(2), {"net_arch": []}, marks=pytest.mark.slow),
        pytest.param(IMAGE, spaces.Discrete(3), {}, marks=pytest.mark.slow),
        pytest.param(IMAGE, spaces.Discrete(3), {"features_extractor_class": NatureCNN}, marks=pytest.mark.slow),
        pytest.param(IMAGE_AND_PARTS, spaces.MultiBinary(3), {"norm": "layer"}, marks=pytest.mark.slow),
        pytest.param(spaces.MultiBinary(4), spaces.Box(0, 2, (1,)), {}, marks=pytest.mark.slow),
    ],
)
def test_the_graph_is_the_policy(
    tmp_path: Path, observations: Any, actions: spaces.Space[Any], policy_kwargs: dict[str, Any]
) -> None:
    policy = policy_with_networks(observations, actions, **policy_kwargs)
    assert_same(policy, export_onnx(policy, tmp_path / "policy.onnx"))


def test_masks_are_an_input_of_a_masked_policy_and_merged_networks_lie_anywhere(tmp_path: Path) -> None:
    policy = policy_with_networks(VECTOR, spaces.MultiDiscrete([3, 2]), n=4)
    policy.masked = True
    policy.improvement.stack.merge(1, 3, random_weights(policy.architecture, 2))  # type: ignore[union-attr, operator]
    assert_same(policy, export_onnx(policy, tmp_path / "policy.onnx"), masked=True)


def test_hundreds_of_networks_with_large_logits_are_a_small_graph(tmp_path: Path) -> None:
    policy = policy_with_networks(spaces.Box(-1, 1, (5,)), spaces.Discrete(4), n=300, scale=3e5)
    assert np.abs(policy.logits(batch(policy.observation_space, 50))).max() > 1e4
    file = export_onnx(policy, tmp_path / "policy.onnx")
    assert_same(policy, file)
    import onnx

    assert len(onnx.load(file).graph.node) < 30


def test_the_file_says_what_it_is_for(tmp_path: Path) -> None:
    model = small_model()
    model.learn(400)
    file = model.export(tmp_path / "new" / "policy.onnx", format="onnx")
    described = json.loads(onnxruntime.InferenceSession(file).get_modelmeta().custom_metadata_map["staq"])
    assert described["environment"] == "CartPole-v1"
    assert described["action_space"] == describe_space(model.action_space)


def test_bad_input(tmp_path: Path) -> None:
    model = small_model()
    with pytest.raises(ValueError, match="no networks yet"):
        model.export(tmp_path / "policy.onnx", format="onnx")
    with pytest.raises(ValueError, match="ends in .onnx"):
        model.export(tmp_path / "policy", format="onnx")
    with pytest.raises(ValueError, match="'safetensors' or 'onnx'"):
        model.export(tmp_path / "policy", format="torchscript")  # type: ignore[arg-type]
