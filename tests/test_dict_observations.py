"""Observations of several parts: rows of bytes inside, SB3's dictionaries outside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.wrappers import FlattenObservation
from stable_baselines3.common.envs import SimpleMultiObsEnv
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.torch_layers import CombinedExtractor
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from staq import Checkpoints, StaQ, load_policy, resume
from staq.networks.conv_mlp import ConvMlp
from staq.networks.observation_parts import ObservationParts
from staq.networks.stacked_module import StackedModule
from tests.conftest import StopAt, assert_identical

EVALUATIONS: dict[str, dict[str, Any]] = {"replay": {"gradient_steps": 20}, "lambda": {}}
SPACE = spaces.Dict(
    {
        "byte": spaces.Box(0, 255, (2, 3), dtype=np.uint8),
        "flags": spaces.MultiBinary(3),
        "real": spaces.Box(-np.inf, np.inf, (4,), dtype=np.float64),
        "short": spaces.Box(-1, 1, (1,), dtype=np.float32),
        "sizes": spaces.MultiDiscrete([3, 4]),
        "which": spaces.Discrete(5, start=-2),
    }
)


class Parts(gymnasium.Env[dict[str, Any], int]):
    """Says in one part what the best action is; the rest is noise."""

    observation_space, action_space = SPACE, spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.steps = 0
        return self._draw(), {}

    def _draw(self) -> dict[str, Any]:
        rng = self.np_random
        self.seen = {
            "byte": rng.integers(0, 256, (2, 3)).astype(np.uint8),
            "flags": rng.integers(0, 2, 3).astype(np.int8),
            "real": rng.normal(size=4),
            "short": rng.uniform(-1, 1, 1).astype(np.float32),
            "sizes": np.array([rng.integers(3), rng.integers(4)]),
            "which": rng.integers(-2, 3),
        }
        return self.seen

    def step(self, action: int) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        reward, self.steps = float(action == self.seen["sizes"][0]), self.steps + 1
        return self._draw(), reward, False, self.steps == 12, {}


class Picture(Parts):
    """With an image beside vectors."""

    observation_space = spaces.Dict(
        {"image": spaces.Box(0, 255, (3, 40, 40), dtype=np.uint8), "sizes": spaces.MultiDiscrete([3, 4])}
    )

    def _draw(self) -> dict[str, Any]:
        seen = super()._draw()
        image = self.np_random.integers(0, 256, (3, 40, 40)).astype(np.uint8)
        self.seen = {"image": image, "sizes": seen["sizes"]}
        return self.seen


def made(env: Any, evaluation: str = "replay", policy: str = "MultiInputPolicy", **changed: Any) -> StaQ:
    settings: dict[str, Any] = {"policy_update_interval": 200, "batch_size": 32, "seed": 0, "device": "cpu"}
    settings |= {"policy_kwargs": {"net_arch": [16]}} | EVALUATIONS[evaluation] | changed
    return StaQ(policy, env, evaluation=evaluation, **settings)


def envs(kind: type[gymnasium.Env] = Parts) -> DummyVecEnv:
    return DummyVecEnv([kind] * 4)


def test_nothing_is_lost_in_a_row_of_bytes() -> None:
    SPACE.seed(0)
    drawn = [SPACE.sample() for _ in range(7)]
    obs = {key: torch.as_tensor(np.stack([d[key] for d in drawn])) for key in SPACE}
    parts = ObservationParts(SPACE)
    rows = parts.packed(obs)
    assert rows.dtype == torch.uint8
    assert rows.shape == (7, *(parts.stored_space.shape or ()))
    for key, values in parts.unpacked(rows[[3, 0]]).items():
        assert values.dtype == obs[key].dtype
        assert torch.equal(values, obs[key][[3, 0]]), key


@pytest.mark.parametrize("evaluation", EVALUATIONS)
def test_it_is_the_run_on_flat_vectors_where_parts_are_only_flattened(evaluation: str) -> None:
    """Gymnasium's wrapper gives the same numbers in the same order, but for float64, which has its own type here."""

    class Float(FlattenObservation):
        def observation(self, observation: Any) -> Any:
            return super().observation(observation).astype(np.float32)

    def flat() -> gymnasium.Env:
        env = Float(Parts())
        env.observation_space = spaces.Box(-np.inf, np.inf, env.observation_space.shape, dtype=np.float32)
        return env

    one = made(envs(), evaluation).learn(800)
    other = made(DummyVecEnv([flat] * 4), evaluation, "MlpPolicy").learn(800)
    assert isinstance(one.policy.architecture, ConvMlp)
    for name, weight in one.policy.q_net.weights.items():
        assert torch.equal(weight, other.policy.q_net.weights[name]), name


@pytest.mark.parametrize("kind", [Parts, Picture])
@pytest.mark.parametrize("evaluation", EVALUATIONS)
def test_files_and_resumed_runs_are_exact(evaluation: str, kind: type[gymnasium.Env], tmp_path: Path) -> None:
    name = f"{kind.__name__}-v0"
    gymnasium.register(name, kind)
    try:

        def fresh() -> StaQ:
            return made(DummyVecEnv([lambda: gymnasium.make(name)] * 4), evaluation)

        whole = fresh().learn(800)
        assert_identical(whole, fresh().learn(800))
        fresh().learn(800, callback=[Checkpoints(tmp_path / "checkpoints", seconds=0.0), StopAt(501)])
        resumed = resume(fresh(), tmp_path / "checkpoints")
        assert_identical(whole, resumed.learn(400, reset_num_timesteps=False))
        obs = whole.env.reset()  # type: ignore[union-attr]
        expected = whole.action_probabilities(obs)  # type: ignore[arg-type]
        whole.save(tmp_path / "model")
        loaded = StaQ.load(tmp_path / "model")
        np.testing.assert_array_equal(loaded.action_probabilities(obs), expected)  # type: ignore[arg-type]
        policy, _ = load_policy(whole.export(tmp_path / "export"))
        np.testing.assert_allclose(policy.action_probabilities(obs), expected, rtol=1e-6)  # type: ignore[arg-type]
        single = {key: values[0] for key, values in obs.items()}  # type: ignore[union-attr]
        assert policy.predict(single, deterministic=True)[0] == expected[0].argmax()
    finally:
        del gymnasium.registry[name]


@pytest.mark.parametrize("evaluation", EVALUATIONS)
def test_images_take_sb3s_extractor(evaluation: str) -> None:
    model = made(envs(Picture), evaluation).learn(400)
    architecture = model.policy.architecture
    assert isinstance(architecture, StackedModule)
    assert isinstance(architecture.template[0], CombinedExtractor)  # type: ignore[index]
    assert all(torch.isfinite(w).all() for w in model.policy.q_net.weights.values())


def test_an_extractor_of_ones_own() -> None:
    model = made(envs(), policy_kwargs={"net_arch": [8], "features_extractor_class": CombinedExtractor}).learn(200)
    assert isinstance(model.policy.architecture, StackedModule)


def test_under_vec_normalize() -> None:
    model = made(VecNormalize(envs(), norm_obs_keys=["real", "short"])).learn(400)
    assert model.experience.observations.dtype == torch.uint8
    with pytest.raises(ValueError, match="'byte' came as torch.float32.*norm_obs_keys"):
        made(VecNormalize(envs(), norm_obs_keys=["byte"])).learn(200)


def maze() -> SimpleMultiObsEnv:
    """SB3's maze; all of them show a place alike, and alike every time: it draws its pictures when it is made."""
    np.random.seed(0)  # noqa: NPY002  # SB3's environment draws from it
    return SimpleMultiObsEnv(random_start=False, discrete_actions=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("evaluation", "steps", "settings"),
    [
        # An entropy bonus above the 0.1 that a step costs would pay for staying.
        ("lambda", 10_000, {"ent_weight_init": 0.1, "ent_weight_final": 0.02}),
        ("replay", 15_000, {"gradient_steps": 250}),
    ],
)
def test_sb3s_maze_is_solved(evaluation: str, steps: int, settings: dict[str, Any]) -> None:
    """The shortest way is six steps: five times -0.1, then 1."""
    shared: dict[str, Any] = {"policy_update_interval": 1000, "ent_decay_steps": 10_000, "learning_rate": 1e-3}
    env = DummyVecEnv([maze] * 8)
    model = StaQ("MultiInputPolicy", env, evaluation=evaluation, seed=0, device="cpu", **shared, **settings)
    found, _ = evaluate_policy(model.learn(steps), env, n_eval_episodes=8, warn=False)
    assert float(np.mean(found)) == pytest.approx(0.5)


def test_other_observations_are_refused() -> None:
    class Nested(Parts):
        observation_space = spaces.Dict({"inner": spaces.Dict({"x": spaces.Discrete(2)})})

    class Tupled(Parts):
        observation_space = spaces.Tuple([spaces.Discrete(2)])  # type: ignore[assignment]

    with pytest.raises(ValueError, match=r"within Dict observations \(key 'inner'\)"):
        made(Nested())
    with pytest.raises(ValueError, match="Tuple observations"):
        made(Tupled())
    with pytest.raises(ValueError, match="MultiInputPolicy"):
        made(envs(), policy="MlpPolicy")
    with pytest.raises(ValueError, match="MultiInputPolicy is not for observations of Box.*use MlpPolicy"):
        made("CartPole-v1")
