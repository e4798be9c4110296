"""stable-baselines3's own tools, unchanged, on StaQ; and DQN's documentation with the class name changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from stable_baselines3.common.callbacks import (
    CallbackList,
    CheckpointCallback,
    EvalCallback,
    StopTrainingOnRewardThreshold,
)
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import SubprocVecEnv, VecFrameStack, VecNormalize

from staq import StaQ
from tests.conftest import SMALL, assert_logits_current, small_model

OBS = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)


def test_documentation_example_of_dqn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example of SB3's page on DQN, shortened in steps only."""
    monkeypatch.chdir(tmp_path)
    env = gymnasium.make("CartPole-v1", render_mode="rgb_array")
    model = StaQ("MlpPolicy", env, verbose=0, **SMALL)
    model.learn(total_timesteps=400, log_interval=4)
    model.save("dqn_cartpole")
    del model
    model = StaQ.load("dqn_cartpole")
    obs, info = env.reset()
    for _ in range(50):
        action, _states = model.predict(obs, deterministic=True)
        obs, reward, terminated, truncated, info = env.step(action)
        if terminated or truncated:
            obs, info = env.reset()
    env.close()


def test_dqn_from_the_zoo_runs_with_the_class_name_changed() -> None:
    """RL Zoo's CartPole settings for DQN: what has no meaning here is said, the rest is used."""
    with pytest.warns(UserWarning, match="have no meaning"):
        model = StaQ(
            "MlpPolicy",
            "CartPole-v1",
            learning_rate=2.3e-3,
            batch_size=64,
            buffer_size=100000,
            learning_starts=1000,
            gamma=0.99,
            target_update_interval=10,
            train_freq=256,
            gradient_steps=128,
            exploration_fraction=0.16,
            exploration_final_eps=0.04,
            policy_kwargs=dict(net_arch=[256, 256]),
            device="cpu",
        )
    assert (model.batch_size, model.gradient_steps, model.buffer_size) == (64, 128, 100000)


def test_save_and_load_give_the_same_policy(tmp_path: Path) -> None:
    model = small_model(learning_rate=lambda progress: 1e-3 * progress).learn(1000)
    model.save(tmp_path / "model")
    loaded = StaQ.load(tmp_path / "model", custom_objects={"learning_rate": 5e-4, "lr_schedule": lambda _: 5e-4})
    np.testing.assert_array_equal(loaded.logits(OBS), model.logits(OBS))
    np.testing.assert_array_equal(loaded.q_values(OBS)[0], model.q_values(OBS)[0])
    assert loaded.learning_rate == 5e-4
    assert (loaded.steps_collected, loaded.iteration) == (1000, 5)
    assert loaded.step_size == model.step_size
    with pytest.raises(ValueError, match="learning_rate as a pickle.*trust=True"):
        StaQ.load(tmp_path / "model")  # a lambda has no name
    loaded = StaQ.load(tmp_path / "model", env=make_vec_env("CartPole-v1", 2), trust=True)
    loaded.learn(200)
    assert loaded.iteration == 6


def test_a_saved_optimiser_goes_on(tmp_path: Path) -> None:
    model = small_model().learn(400)
    model.save(tmp_path / "model")
    loaded = StaQ.load(tmp_path / "model", env=model.get_env())
    old, new = (m.policy.optimizer.state_dict()["state"] for m in (model, loaded))
    assert all(torch.equal(old[i]["exp_avg"], new[i]["exp_avg"]) for i in old)


def test_an_optimiser_of_all_parameters_is_loaded_without_those_of_the_targets(tmp_path: Path) -> None:
    model = small_model()
    model.policy.optimizer = torch.optim.Adam(model.policy.parameters(), lr=1e-3)
    model.learn(400).save(tmp_path / "model")
    with pytest.warns(UserWarning, match="also holds the target networks"):
        loaded = StaQ.load(tmp_path / "model", env=model.get_env())
    own, saved = loaded.policy.optimizer.state, model.policy.optimizer.state
    for ours, theirs in zip(loaded.q_net.parameters(), model.q_net.parameters(), strict=True):
        assert torch.equal(own[ours]["exp_avg"], saved[theirs]["exp_avg"])
    assert len(own) == len(list(loaded.q_net.parameters()))
    loaded.learn(200)


def test_parameters_can_be_taken_and_set() -> None:
    one, two = small_model().learn(800), small_model(seed=3)
    two.set_parameters(one.get_parameters())
    np.testing.assert_array_equal(two.logits(OBS), one.logits(OBS))


def test_the_replay_is_saved_and_loaded(tmp_path: Path) -> None:
    model = small_model().learn(600)
    model.save(tmp_path / "model")
    model.save_replay_buffer(tmp_path / "replay")
    loaded = StaQ.load(tmp_path / "model", env=model.get_env())
    loaded.load_replay_buffer(tmp_path / "replay")
    assert torch.equal(loaded.replay.observations, model.replay.observations)
    torch.testing.assert_close(loaded.replay.accumulated.values, model.replay.accumulated.values, rtol=1e-5, atol=1e-4)
    loaded.learn(200)


def test_a_replay_serves_another_number_of_environments(tmp_path: Path) -> None:
    model = small_model().learn(600)
    model.save_replay_buffer(tmp_path / "replay")
    other = small_model(n_envs=2)
    other.load_replay_buffer(tmp_path / "replay")
    other.learn(200)
    assert other.replay.size() == 500


@pytest.mark.parametrize("reset", [True, False])
@pytest.mark.parametrize("n", [1, 4])
def test_the_replay_takes_transitions_from_elsewhere(n: int, reset: bool) -> None:
    """Row by row as it holds them, or in SB3's layout: steps of several environments."""
    model = small_model().learn(300)
    obs = OBS if n == 1 else OBS.reshape(-1, n, 4)
    rewards, actions, infos = np.ones(obs.shape[:-1]), np.ones((len(obs), n, 1)), [[{}] * n] * len(obs)
    model.replay.extend(obs, obs + 1, actions, rewards, np.zeros_like(rewards), infos)
    assert torch.equal(model.replay.newest(40)["observations"], torch.from_numpy(OBS))
    assert model.replay.newest(40)["actions"].tolist() == [1] * 40
    model.learn(100, reset_num_timesteps=reset)
    assert_logits_current(model)


def test_a_single_transition_from_elsewhere_does_not_stop_learning() -> None:
    model = small_model()
    model.replay.add(OBS[:1], OBS[1:2], np.ones((1, 1)), np.ones(1), np.zeros(1, dtype=bool), [{}])
    model.learn(200)
    assert (model.iteration, model.replay.size()) == (1, 201)


def test_new_parameters_bring_new_logits_for_the_replay() -> None:
    one, two = small_model().learn(800), small_model(seed=3).learn(800)
    two.set_parameters(one.get_parameters())
    recomputed = two.policy.improvement.accumulated(two.replay.next_observations)
    assert torch.equal(two.replay.accumulated.values, recomputed)


def test_more_memory_can_be_given_when_loading(tmp_path: Path) -> None:
    model = small_model().learn(1000)
    model.save(tmp_path / "model")
    loaded = StaQ.load(tmp_path / "model", env=model.get_env(), memory_size=50)
    step = loaded.step_size
    stack = loaded.policy.improvement.stack
    assert stack.prefactor == pytest.approx(step.alpha / (1 - step.beta**50))
    loaded.learn(400)
    assert len(stack) == 5


def test_a_model_saved_in_mid_iteration_loads_as_it_was(tmp_path: Path) -> None:
    class Stop(CheckpointCallback):
        def _on_step(self) -> bool:
            return super()._on_step() and self.num_timesteps < 700

    model = small_model().learn(4000, callback=Stop(10**6, str(tmp_path)))
    model.save(tmp_path / "model")
    loaded = StaQ.load(tmp_path / "model")
    assert loaded.step_size == model.step_size
    np.testing.assert_array_equal(loaded.logits(OBS), model.logits(OBS))


@pytest.mark.parametrize("every", [45, 50])
def test_a_model_saved_in_mid_iteration_begins_it_again(tmp_path: Path, every: int) -> None:
    """What the iteration had collected is not in the file: a q must not be learned from the few steps left of it."""
    small_model().learn(800, callback=CheckpointCallback(every, str(tmp_path), name_prefix="model"))
    loaded = StaQ.load(tmp_path / f"model_{12 * every}_steps", env=make_vec_env("CartPole-v1", 4, seed=8))
    assert loaded.iteration == 2
    assert loaded.steps_collected == 400
    loaded.learn(200)
    assert loaded.iteration == 3
    assert loaded.replay.size() == 200
    assert len(loaded.policy.improvement.stack) == 3


def test_a_replay_of_another_kind_is_refused(tmp_path: Path) -> None:
    from stable_baselines3.common.save_util import save_to_pkl

    save_to_pkl(tmp_path / "other.pkl", {"not": "a replay"})
    with pytest.raises(ValueError, match="is a pickle.*trust=True"):
        small_model().load_replay_buffer(tmp_path / "other.pkl")
    with pytest.raises(ValueError, match="holds a dict"):
        small_model().load_replay_buffer(tmp_path / "other.pkl", trust=True)


def test_callbacks(tmp_path: Path) -> None:
    """Returns, checkpoints with the replay, and a stop on reaching a return."""
    stop = StopTrainingOnRewardThreshold(reward_threshold=5.0)
    evaluation = EvalCallback(
        make_vec_env("CartPole-v1", 2),
        callback_on_new_best=stop,
        best_model_save_path=str(tmp_path),
        log_path=str(tmp_path),
        eval_freq=100,
        n_eval_episodes=2,
        verbose=0,
    )
    saving = CheckpointCallback(50, str(tmp_path), save_replay_buffer=True)
    model = small_model().learn(4000, callback=CallbackList([saving, evaluation]))
    assert model.num_timesteps == 400  # 100 vectorised steps of four environments
    assert (tmp_path / "evaluations.npz").exists()
    assert (tmp_path / "best_model.zip").exists()
    assert (tmp_path / "rl_model_200_steps.zip").exists()
    assert (tmp_path / "rl_model_replay_buffer_200_steps.pkl").exists()
    np.testing.assert_array_equal(StaQ.load(tmp_path / "best_model").logits(OBS), model.logits(OBS))


def test_evaluate_policy_and_monitor(tmp_path: Path) -> None:
    env = Monitor(gymnasium.make("CartPole-v1"), str(tmp_path / "log"))
    model = StaQ("MlpPolicy", env, **SMALL).learn(400)
    mean, _ = evaluate_policy(model, env, n_eval_episodes=3, deterministic=False)
    assert mean > 5
    assert (tmp_path / "log.monitor.csv").exists()
    env.close()


def test_vec_normalize_keeps_logits_exact() -> None:
    """Observations are stored as the policy saw them, so moving statistics do not make their logits stale."""
    env = VecNormalize(make_vec_env("CartPole-v1", 4, seed=0))
    model = StaQ("MlpPolicy", env, **SMALL).learn(1200)
    recomputed = model.policy.improvement.accumulated(model.replay.next_observations)
    torch.testing.assert_close(model.replay.accumulated.values, recomputed, rtol=1e-5, atol=1e-4)
    assert model.get_vec_normalize_env() is env


def test_vec_normalize_over_boards() -> None:
    """Its observations are floats, whatever its space says."""
    env = VecNormalize(make_vec_env("MinAtar/Breakout-v1", 4, seed=0))
    model = StaQ("CnnPolicy", env, **SMALL).learn(400)
    assert model.replay.observations.dtype is torch.float32


def test_vec_frame_stack_and_subprocesses() -> None:
    model = StaQ("MlpPolicy", VecFrameStack(make_vec_env("CartPole-v1", 2), 3), **SMALL).learn(200)
    assert model.replay.observations.shape[1:] == (12,)
    images = StaQ("CnnPolicy", VecFrameStack(make_vec_env("MinAtar/Breakout-v1", 2), 2), **SMALL)
    assert images.replay.observations.shape[1:] == (10, 10, 8)
    env = make_vec_env("CartPole-v1", 2, vec_env_cls=SubprocVecEnv)
    StaQ("MlpPolicy", env, **SMALL).learn(200)
    env.close()


def test_learning_in_two_halves_is_learning_at_once() -> None:
    halves = small_model()
    halves.learn(400)
    halves.learn(400, reset_num_timesteps=False)
    whole = small_model().learn(800)
    np.testing.assert_array_equal(halves.logits(OBS), whole.logits(OBS))


def test_predict_without_a_batch_gives_an_action_the_environment_takes() -> None:
    model, env = small_model(), gymnasium.make("CartPole-v1")
    obs, _ = env.reset()
    action, _ = model.predict(obs)
    assert action.shape == ()
    env.step(action)


def test_the_policy_saves_and_loads_by_itself(tmp_path: Path) -> None:
    from staq import MlpPolicy

    model = small_model().learn(600)
    model.policy.save(str(tmp_path / "policy.pt"))
    policy = MlpPolicy.load(str(tmp_path / "policy.pt"), device="cpu")
    obs: Any = torch.as_tensor(OBS)
    assert torch.equal(policy.logits_of(obs), model.policy.logits_of(obs))


def test_a_model_of_a_gpu_is_loaded_without_one(tmp_path: Path) -> None:
    model = small_model()
    model.save(tmp_path / "model", exclude=["verbose"])
    with pytest.warns(UserWarning, match="finds no GPU; .*model is loaded on the CPU"):
        loaded = StaQ.load(tmp_path / "model", device="cuda")
    assert loaded.device.type == loaded.policy.device.type == "cpu"
    assert loaded.verbose == 0  # what was left out is as by default
