"""The invariant of accumulated logits, after every operation that can break it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

from staq import Checkpoints, StaQ, registry, resume
from staq.registry import ALGORITHMS
from tests.conftest import SMALL, assert_logits_current, small_model


class Checked(BaseCallback):
    """Looks after every step (add, wrap) and at the boundary of every iteration (push, delete)."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []
        self.n_pending: list[int] = []

    def _on_step(self) -> bool:
        assert_logits_current(self.model)
        replay: Any = self.model.replay
        self.n_pending.append(int(replay.accumulated.pending.sum()))
        return True

    def _on_rollout_start(self) -> None:
        self._look()

    def _on_training_end(self) -> None:
        self._look()

    def _look(self) -> None:
        assert_logits_current(self.model)
        assert not (self.model.at_boundary and self.model.replay.accumulated.pending.any())
        self.sizes.append(len(self.model.policy.improvement.frozen_names()))


@pytest.mark.parametrize("memory_size", [1, 3, None])
def test_add_wrap_push_and_delete(memory_size: int | None) -> None:
    """Eight iterations: the buffer wraps in the third, a stack of three deletes from the fourth on."""
    checked = Checked()
    model = small_model(memory_size=memory_size)
    model.learn(1600, callback=checked)
    assert model.replay.full
    assert checked.sizes == [min(k, memory_size or k) for k in range(9)]
    # After a step the new rows are pending, and the ends of episodes wait until the iteration's end.
    assert min(checked.n_pending) == 4
    assert max(checked.n_pending) > 4


@pytest.mark.parametrize("algo", registry.ours())
def test_every_improvement_says_what_changed(algo: str) -> None:
    settings = {name: value for name, value in SMALL.items() if name != "memory_size"}
    settings |= {"actor_steps": 30} if algo.startswith("ac-") else {}
    model = ALGORITHMS[algo].load()("MlpPolicy", make_vec_env("CartPole-v1", 4, seed=7), **settings)
    model.learn(800, callback=Checked())


def test_a_board_too() -> None:
    small_model("MinAtar/Breakout-v1").learn(1000, callback=Checked())


def test_a_stop_in_mid_iteration() -> None:
    class Stop(Checked):
        def _on_step(self) -> bool:
            return super()._on_step() and self.num_timesteps < 300

        def _on_training_end(self) -> None:
            pass

    model = small_model()
    model.learn(1000, callback=Stop())
    assert_logits_current(model)
    model.learn(1000, reset_num_timesteps=False, callback=Checked())


def test_resume(tmp_path: Path) -> None:
    small_model().learn(1000, callback=Checkpoints(tmp_path))
    model = resume(small_model(), tmp_path)
    assert_logits_current(model)
    model.learn(400, reset_num_timesteps=False, callback=Checked())


def test_load(tmp_path: Path) -> None:
    model = small_model().learn(1000)
    model.save(tmp_path / "model")
    model.save_replay_buffer(tmp_path / "replay")
    model.learn(400)  # the policy moves on
    model.load_replay_buffer(tmp_path / "replay")
    assert_logits_current(model)
    loaded = StaQ.load(tmp_path / "model", env=model.get_env(), memory_size=50)
    loaded.load_replay_buffer(tmp_path / "replay")
    assert_logits_current(loaded)
    loaded.learn(400, callback=Checked())


def test_set_parameters() -> None:
    one, two = small_model().learn(800), small_model(seed=3).learn(800)
    before = two.replay.accumulated.values.clone()
    two.set_parameters(one.get_parameters())
    assert not torch.equal(two.replay.accumulated.values, before)
    assert_logits_current(two)
    two.learn(400, callback=Checked())


def test_the_check_notices_a_row_that_is_wrong() -> None:
    model = small_model().learn(400)
    model.replay.accumulated.values[17] += 0.1
    with pytest.raises(AssertionError):
        assert_logits_current(model)
    model.replay.accumulated.expect(torch.tensor([17]))
    assert_logits_current(model)
