"""The ring of transitions: against a plain list, and with its own generator."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from staq.experience.replay import Replay
from staq.experience.transitions import StepMasks
from staq.networks.conv_mlp import ConvMlp


def make(capacity: int, n_envs: int, space: spaces.Space[Any] | None = None) -> Replay:
    generator = torch.Generator().manual_seed(0)
    space = space or spaces.Box(-1, 1, (2,))
    return Replay(capacity, space, spaces.Discrete(3), ConvMlp(space, 3, []), generator, n_envs)


def add(replay: Replay, t: int, n_envs: int, done: bool = False, truncated: bool = False) -> list[float]:
    """One step whose reward and observations tell the time and the environment."""
    mark = 100.0 * t + np.arange(n_envs)
    obs = np.stack([mark, mark], axis=1).astype(np.float32)
    infos: list[dict[str, Any]] = [{"TimeLimit.truncated": truncated} for _ in range(n_envs)]
    replay.add(obs, obs + 0.5, np.full(n_envs, t % 3), mark, np.full(n_envs, done), infos)
    return mark.tolist()


def test_everything_is_allowed_in_what_comes_without_masks() -> None:
    """In rows that had masks before, too."""
    replay, obs = make(4, 2), np.zeros((2, 2), dtype=np.float32)
    masks = StepMasks(*torch.eye(3, dtype=torch.bool)[:2].repeat(2, 1, 1))
    for each in (masks, masks, None):
        replay.add(obs, obs, np.zeros(2), np.zeros(2), np.zeros(2, dtype=bool), [{}, {}], masks=each)
    assert replay.masks is not None
    assert replay.next_masks is not None
    for stored in (replay.masks, replay.next_masks):
        assert stored.sum(-1).tolist() == [3, 3, 1, 1]


@given(capacity=st.integers(1, 20), n_envs=st.integers(1, 7), steps=st.integers(0, 12))
@settings(deadline=None, max_examples=60)
def test_it_holds_exactly_the_last_transitions(capacity: int, n_envs: int, steps: int) -> None:
    """For any capacity and number of environments, whether or not one divides the other."""
    capacity = max(capacity, n_envs)
    replay, history = make(capacity, n_envs), []
    for t in range(steps):
        history += add(replay, t, n_envs)
    expected = history[-capacity:]
    assert replay.size() == len(expected)
    assert replay.newest(len(expected))["rewards"].tolist() == expected
    assert sorted(replay.rewards[: replay.size()].tolist()) == sorted(expected)
    newest = replay.newest(len(expected))
    torch.testing.assert_close(newest["next_observations"], newest["observations"] + 0.5)


@given(capacity=st.integers(3, 12), steps=st.integers(1, 8))
@settings(deadline=None, max_examples=30)
def test_logits_stay_with_their_rows(capacity: int, steps: int) -> None:
    replay = make(capacity, 3)
    for t in range(steps):
        add(replay, t, 3)
        assert replay.accumulated.pending[replay.last_rows].all()
        improvement: Any = SimpleNamespace(accumulated=lambda rewards: rewards.double()[:, None].expand(3, 3))
        replay.see(replay.rewards[replay.last_rows], improvement)
        assert not replay.accumulated.pending[replay.last_rows].any()
    size = replay.size()
    torch.testing.assert_close(replay.accumulated.values[:size, 0], replay.rewards[:size].double())


@pytest.mark.parametrize(
    ("done", "truncated", "terminated"), [(True, False, True), (True, True, False), (False, False, False)]
)
def test_truncation_is_not_termination(done: bool, truncated: bool, terminated: bool) -> None:
    replay = make(4, 2)
    add(replay, 0, 2, done, truncated)
    assert replay.terminated[:2].tolist() == [terminated] * 2
    ends = replay.dones & ~replay.timeouts  # of which SB3 makes targets
    assert ends[:2].tolist() == [terminated] * 2


@pytest.mark.parametrize(
    ("space", "dtype"),
    [
        (spaces.Box(0, 255, (8, 8, 3), dtype=np.uint8), torch.uint8),
        (spaces.Box(0, 1, (10, 10, 4), dtype=bool), torch.bool),  # type: ignore[arg-type]
        (spaces.Box(-1, 1, (4,), dtype=np.float64), torch.float64),
        (spaces.Discrete(5), torch.int64),
    ],
)
def test_observations_keep_their_type(space: spaces.Space[Any], dtype: torch.dtype) -> None:
    replay = make(6, 2, space)
    obs = np.stack([space.sample(), space.sample()])
    replay.add(obs, obs, np.zeros(2), np.zeros(2), np.zeros(2, dtype=bool), [{}, {}])
    assert replay.observations.dtype is dtype
    np.testing.assert_array_equal(replay.observations[:2].numpy().reshape(obs.shape), obs)


def test_draws_come_from_its_own_generator() -> None:
    replay = make(50, 5)
    for t in range(4):
        add(replay, t, 5)
    state = replay.generator.get_state()
    first = replay.draw(3, 8)
    np.random.seed(1)  # noqa: NPY002  (the global generator must not matter)
    torch.manual_seed(1)
    replay.generator.set_state(state)
    assert torch.equal(replay.draw(3, 8), first)
    assert first.shape == (3, 8)
    assert first.max() < 20


def test_draws_are_uniform_over_what_is_stored() -> None:
    replay = make(10, 5)
    add(replay, 0, 5)
    counts = torch.bincount(replay.draw(100, 100).flatten(), minlength=10)
    assert counts[5:].sum() == 0
    assert counts[:5].min() > 1800


def test_samples_have_sb3s_shape() -> None:
    replay = make(10, 5)
    add(replay, 0, 5, done=True)
    batch = replay.sample(4)
    assert batch.observations.shape == (4, 2)
    assert batch.actions.shape == batch.rewards.shape == batch.dones.shape == (4, 1)
    assert batch.dones.all()
