"""The loop: what it computes, that it repeats, that it learns, and on which shapes of problems."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import IdentityEnv
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor

from staq import StaQ
from staq.experience.replay import Replay
from tests.conftest import (
    SMALL,
    Endless,
    TinyExtractor,
    assert_identical,
    assert_logits_current,
    lambda_model,
    small_model,
)


class Iterations(BaseCallback):
    """Looks at the model at the boundary of every iteration."""

    def __init__(self, look: Any) -> None:
        super().__init__()
        self.look, self.seen = look, []

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        self.seen.append(self.look(self.model))

    def _on_training_end(self) -> None:
        self.seen.append(self.look(self.model))


# ---------------------------------------------------------------------- what it computes


def test_the_entropy_weight_is_annealed_over_all_calls_of_learn() -> None:
    model = small_model(ent_decay_steps=1000)
    watch = Iterations(lambda m: m.step_size.entropy_weight * math.log(2))
    model.learn(400, callback=watch)
    model.learn(400, callback=watch)  # resets num_timesteps, and must not reset the annealing
    # 2.0 − 1.6·steps/1000 at 0, 200 and the end of the first call; then from there on
    assert watch.seen == pytest.approx([2.0, 1.68, 1.36, 1.36, 1.04, 0.72])


def test_iterations_are_exact() -> None:
    """200 environment steps, 200 gradient steps, one push; the policy is fixed in between."""
    model = small_model(n_envs=5)
    probe = np.zeros((1, 4), dtype=np.float32)

    class Fixed(Iterations):
        def _on_rollout_start(self) -> None:
            self.policy_then = self.model.logits(probe)

        def _on_rollout_end(self) -> None:
            assert np.array_equal(self.model.logits(probe), self.policy_then)
            self.seen.append((self.model.num_timesteps, self.model._n_updates, self.model.iteration))

        def _on_training_end(self) -> None:
            pass

    watch = Fixed(None)
    model.learn(600, callback=watch)
    assert watch.seen == [(200, 0, 0), (400, 200, 1), (600, 400, 2)]
    assert (model._n_updates, len(model.policy.improvement.stack)) == (600, 3)


def test_scaling_rewards_equals_inverse_scaling_of_both_weights() -> None:
    """Q and τ, η scale together, so the policy is the same: learned here by plain SGD with a scaled step."""

    def run(scale: float) -> StaQ:
        return small_model(
            reward_scale=scale,
            kl_weight=4.0 * scale,
            ent_weight_init=2.0 * scale,
            ent_weight_final=0.4 * scale,
            learning_rate=1e-3,
            # A linear network, whose gradient and weights both scale with the reward.
            policy_kwargs={"net_arch": [], "optimizer_class": torch.optim.SGD},
        ).learn(1000)

    one, eight = run(1.0), run(8.0)
    obs = one.replay.observations[:50].numpy()
    np.testing.assert_allclose(eight.logits(obs), one.logits(obs), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(eight.q_values(obs)[0], 8 * one.q_values(obs)[0], rtol=1e-3, atol=1e-3)


def test_q_values_and_probabilities_agree_with_the_policy() -> None:
    model = small_model().learn(800)
    obs = model.replay.observations[:6].numpy()
    current, frozen = model.q_values(obs)
    assert current.shape == (6, 2, 2)
    assert frozen.shape == (6, 3, 2, 2)
    stack = model.policy.improvement.stack
    q = frozen.mean(2)  # [B, n, A]
    logits = stack.prefactor * np.einsum("n,bna->ba", stack.relative_weights, q - q.mean(-1, keepdims=True))
    np.testing.assert_allclose(model.logits(obs), logits, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(model.action_probabilities(obs).sum(-1), 1.0)
    greedy = model.predict(obs, deterministic=True)[0]
    np.testing.assert_array_equal(greedy, model.logits(obs).argmax(-1))
    assert model.logits(obs[0]).shape == (2,)
    np.testing.assert_allclose(model.q_values(obs[0])[1], frozen[0], rtol=1e-4, atol=1e-4)


def test_predict_samples_the_softmax_without_epsilon() -> None:
    model = small_model(epsilon=1.0).learn(1000)
    obs = np.repeat(model.replay.observations[:1].numpy(), 20_000, axis=0)
    actions = model.predict(obs, deterministic=False)[0]
    assert actions.mean() == pytest.approx(model.action_probabilities(obs[0])[1], abs=0.015)


def test_an_action_space_may_start_elsewhere() -> None:
    seen = set()

    class Shifted(Endless):
        def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            seen.add(int(action))
            return super().step(action)

    env = Shifted(action_space=spaces.Discrete(3, start=5))
    model = StaQ("MlpPolicy", env, **SMALL).learn(400)
    assert seen == {5, 6, 7}
    assert 5 <= int(model.predict(env.reset()[0])[0]) <= 7


def test_sticky_actions_end_with_their_episode() -> None:
    """Held for about 1,000 steps, but episodes have 5: one action in each, and another one in the next."""
    episodes: list[list[int]] = []

    class FiveSteps(Endless):
        def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
            self.steps = 0
            episodes.append([])
            self.actions = episodes[-1]
            return super().reset(**arguments)

        def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            self.actions.append(int(action))
            obs, reward, _, _, info = super().step(action)
            return obs, reward, self.steps == 5, False, info

    envs = DummyVecEnv([lambda: FiveSteps(action_space=spaces.Discrete(50))] * 4)
    model = StaQ("MlpPolicy", envs, behaviour="sticky", sticky_rate=1000.0, **SMALL)
    model.learn(200)
    finished = [actions for actions in episodes if len(actions) == 5]
    assert len(finished) == 40
    assert all(len(set(actions)) == 1 for actions in finished)
    assert len({actions[0] for actions in finished}) > 15


def test_diagnostics_are_logged_every_iteration(tmp_path: Any) -> None:
    from stable_baselines3.common.logger import configure

    model = small_model()
    model.set_logger(configure(str(tmp_path), ["csv"]))
    model.learn(600)
    model.logger.close()
    lines = (tmp_path / "progress.csv").read_text().splitlines()
    assert len(lines) == 4
    header = set(lines[0].split(","))
    named = "policy_entropy policy_kl entropy_weight alpha beta networks pushes oldest_weight mean_abs_q bellman_error"
    assert {f"staq/{name}" for name in named.split()} <= header
    assert {f"time/{phase}_seconds" for phase in ("collect", "targets", "gradient", "improve")} <= header
    assert {"rollout/ep_rew_mean", "train/loss", "train/learning_rate", "time/fps"} <= header


# ---------------------------------------------------------------------- that it repeats


@pytest.mark.parametrize("arguments", [{}, {"behaviour": "sticky", "target_action": "sampled"}])
@pytest.mark.parametrize("env_id", ["CartPole-v1", "MinAtar/SpaceInvaders-v1"])
def test_the_same_seed_gives_the_same_run(env_id: str, arguments: dict[str, Any]) -> None:
    models = []
    for disturbance in (1, 2):
        np.random.seed(disturbance)  # noqa: NPY002  (what else uses the global generators must not matter)
        model = small_model(env_id, **arguments)
        torch.manual_seed(disturbance)
        models.append(model.learn(1000))
    assert_identical(*models)
    obs = models[0].replay.observations[:100].numpy()
    np.testing.assert_array_equal(models[0].predict(obs)[0], models[1].predict(obs)[0])


def test_another_seed_gives_another_run() -> None:
    one, two = small_model().learn(400), small_model(seed=8).learn(400)
    assert not torch.equal(one.replay.observations, two.replay.observations)


# ---------------------------------------------------------------------- that it learns


@pytest.mark.parametrize("memory_size", [1, 20, None])
@pytest.mark.parametrize("observations", ["discrete", "box"])
def test_identity_environments_are_solved(observations: str, memory_size: int | None) -> None:
    """The reward is 1 where the action equals the observation: 100 per episode for the best policy."""
    envs = DummyVecEnv([(lambda: IdentityEnv(4)) if observations == "discrete" else DiscreteAnswers] * 5)
    model = StaQ(
        "MlpPolicy",
        VecMonitor(envs),
        memory_size=memory_size,
        policy_update_interval=250,
        buffer_size=2000,
        batch_size=128,
        gamma=0.0,
        learning_rate=3e-3,
        kl_weight=5.0,
        ent_decay_steps=3000,
        policy_kwargs={"net_arch": [32]},
        seed=0,
        device="cpu",
    ).learn(5000)
    assert evaluate_policy(model, model.get_env(), 5)[0] == 100.0


class DiscreteAnswers(gymnasium.Env[np.ndarray, int]):
    """Say whether the number is above a half."""

    observation_space = spaces.Box(0, 1, (1,))
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self._draw(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        reward = float((self.number > 0.5) == bool(action))
        self.steps += 1
        return self._draw(), reward, False, self.steps == 100, {}

    def _draw(self) -> np.ndarray:
        # Far enough from the border for a small network to tell in seconds.
        self.number = float(self.np_random.choice([0.1, 0.3, 0.7, 0.9]))
        return np.array([self.number], dtype=np.float32)


# ---------------------------------------------------------------------- shapes of problems


@pytest.mark.parametrize("n_envs", [1, 3, 7])
def test_any_number_of_environments(n_envs: int) -> None:
    model = small_model(n_envs=n_envs, policy_update_interval=210).learn(420)
    assert model.num_timesteps == 420


def test_custom_features_extractor_and_net_arch() -> None:
    kwargs = {"features_extractor_class": TinyExtractor, "net_arch": [5]}
    model = small_model(policy_kwargs=kwargs).learn(1000)
    recomputed = model.policy.improvement.accumulated(model.replay.next_observations)
    torch.testing.assert_close(model.replay.accumulated.values, recomputed, rtol=1e-4, atol=1e-4)


def test_atari_size_images_train() -> None:
    class Screen(Endless):
        def _obs(self) -> Any:
            return self.np_random.integers(0, 255, (84, 84, 1), dtype=np.uint8)

    env = Screen(observation_space=spaces.Box(0, 255, (84, 84, 1), dtype=np.uint8))
    model = StaQ("CnnPolicy", env, **(SMALL | {"policy_update_interval": 40, "batch_size": 4})).learn(80)
    assert model.policy.architecture.hidden_size == 512
    assert model.replay.observations.dtype is torch.uint8


@pytest.mark.parametrize(
    "space", [spaces.Box(0, 60_000, (3,), dtype=np.uint16), spaces.Discrete(3, start=1), spaces.MultiBinary(3)], ids=str
)
def test_unusual_observations_train(space: spaces.Space[Any]) -> None:
    class Unusual(Endless):
        def _obs(self) -> Any:
            return self.observation_space.sample()

        def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            return self._obs(), 1.0, False, False, {}

    StaQ("MlpPolicy", Unusual(observation_space=space), **SMALL).learn(400)


def test_a_learning_rate_schedule_is_followed() -> None:
    rates = Iterations(lambda m: m.policy.optimizer.param_groups[0]["lr"])
    small_model(learning_rate=lambda progress: 1e-3 * progress).learn(800, callback=rates)
    assert rates.seen[1:] == pytest.approx([7.5e-4, 5e-4, 2.5e-4, 0.0])


def test_one_environment_is_told_once_what_more_would_bring(caplog: pytest.LogCaptureFixture) -> None:
    model = small_model(n_envs=1, memory_size=50)
    model.learn(200)
    model.learn(200)
    assert [record.getMessage().count("n_envs=50") for record in caplog.records] == [1]


def test_a_callback_that_stops_loses_nothing() -> None:
    """The step it stopped at is kept, and the iteration is finished by the next call."""

    class Stop(Iterations):
        def _on_step(self) -> bool:
            return self.num_timesteps < 300

    model = small_model(n_envs=4)
    model.learn(1000, callback=Stop(lambda m: None))
    assert (model.num_timesteps, model.replay.size(), model.iteration) == (300, 300, 1)
    model.learn(1100, reset_num_timesteps=False)
    assert (model.steps_collected, model.iteration) == (1400, 7)


@pytest.mark.parametrize("stops", [[30, 170, 301, 400], [600, 1], [800]], ids=str)
@pytest.mark.parametrize("make", [small_model, partial(lambda_model, lr_decay_steps=2000)], ids=["replay", "lambda"])
def test_learning_step_by_step_is_learning_at_once(make: Any, stops: list[int]) -> None:
    """Stops in the middle of iterations change nothing, behaviour that holds actions included."""
    model, whole = make(behaviour="sticky"), make(behaviour="sticky").learn(1004)
    for steps in stops:
        before = model.num_timesteps
        model.learn(steps, reset_num_timesteps=False)
        assert model.num_timesteps == before + 4 * math.ceil(steps / 4)
    model.learn(1004 - model.num_timesteps, reset_num_timesteps=False)
    assert (model.iteration, model.num_timesteps) == (5, 1004)
    assert_identical(model, whole)


def test_whole_iterations_may_be_asked_for() -> None:
    model = small_model().learn(210, whole_iterations=True)
    assert (model.num_timesteps, model.iteration) == (400, 2)


@pytest.mark.parametrize("make", [small_model, lambda_model])
def test_a_reset_in_mid_iteration_cuts_episodes(make: Any) -> None:
    """Nothing of the new episodes is taken for what followed the old ones, and the iteration is finished."""
    model = make()
    model.learn(300)
    last = model.env.buf_obs[None].copy()
    model.learn(100)
    experience = model.experience
    assert (model.iteration, model.num_timesteps) == (2, 100)
    if isinstance(experience, Replay):
        assert_logits_current(model)
        followed = experience.next_observations[296:300]
    else:
        assert experience.cut[24].all()
        of_step = torch.isin(experience.next_rows, torch.arange(96, 100))
        followed = experience.next_observations[of_step]
    assert torch.equal(followed, torch.as_tensor(last)[: len(followed)])


def test_a_call_too_short_to_learn_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    model = small_model()
    for _ in range(2):
        model.learn(80, reset_num_timesteps=False)
    assert [record.getMessage() for record in caplog.records] == [
        "Nothing was learned: learn() ended after 80 of the 200 environment steps of an iteration "
        "(policy_update_interval). The next learn() goes on in it; with reset_num_timesteps=False exactly. "
        "For trainings so short choose a smaller one, such as policy_update_interval=100."
    ]
    model.learn(40, reset_num_timesteps=False)
    assert model.iteration == 1


@pytest.mark.parametrize("steps", [-5, "abc", 1.5, math.nan, None])
def test_a_number_of_steps_that_is_none_is_named(steps: Any) -> None:
    with pytest.raises(ValueError, match="total_timesteps=.*whole number of at least 0"):
        small_model().learn(steps)


def test_divergence_is_named() -> None:
    with pytest.raises(FloatingPointError, match=r"diverged in iteration 1, after 200 steps.*learning_rate \(1e\+09\)"):
        small_model(learning_rate=1e9).learn(2000)


def test_learning_starts_from_make_vec_env_by_name() -> None:
    model = StaQ("MlpPolicy", "CartPole-v1", **SMALL).learn(200)
    assert model.num_timesteps == 200
    make_vec_env("CartPole-v1", 2).close()
