"""Acting: distributions by counting, sticky actions by following each environment."""

from __future__ import annotations

import pytest
import torch

from staq.actions import Factors
from staq.experience.behaviour import Behaviour, epsilon_softmax


def make(name: str, n_envs: int, epsilon: float = 0.0, rate: float = 4.0, sizes: tuple[int, ...] = (3,)) -> Behaviour:
    generator = torch.Generator().manual_seed(0)
    return Behaviour(name, n_envs, epsilon, rate, generator, Factors(sizes))  # type: ignore[arg-type]


def test_epsilon_softmax_by_hand() -> None:
    """0.9·(1/4, 3/4) + 0.1·½."""
    probabilities = epsilon_softmax(torch.tensor([[0.25, 0.75]]).log(), 0.1)
    torch.testing.assert_close(probabilities, torch.tensor([[0.275, 0.725]]))


def test_actions_follow_the_distribution() -> None:
    logits = torch.tensor([0.1, 0.2, 0.7]).log().expand(20_000, 3)
    counts = torch.bincount(make("softmax", 20_000, 0.3).act(logits), minlength=3) / 20_000
    torch.testing.assert_close(counts, torch.tensor([0.17, 0.24, 0.59]), atol=0.015, rtol=0)


def test_sticky_holds_each_action_for_its_drawn_time() -> None:
    """Runs of equal draws are told apart by letting every environment draw from a wide set of actions."""
    behaviour, logits = make("sticky", 500, rate=4.0), torch.zeros(500, 10_000)
    actions = torch.stack([behaviour.act(logits) for _ in range(60)])  # [T, envs]
    changes = (actions[1:] != actions[:-1]).float().mean().item()
    poisson = torch.poisson(torch.full((200_000,), 4.0)).clamp(min=1).mean().item()
    assert 1 / changes == pytest.approx(poisson, rel=0.05)


def test_an_action_drawn_for_no_time_is_still_applied_once() -> None:
    behaviour, logits = make("sticky", 300, rate=0.01), torch.zeros(300, 10_000)
    actions = torch.stack([behaviour.act(logits) for _ in range(5)])
    assert (actions[1:] != actions[:-1]).float().mean() > 0.95


def test_the_held_action_is_dropped_at_an_episodes_end_only_there() -> None:
    behaviour, logits = make("sticky", 4, rate=1000.0), torch.zeros(4, 10_000)
    first = behaviour.act(logits).clone()
    behaviour.end_episodes(torch.tensor([True, False, False, True]))
    second = behaviour.act(logits)
    assert (first != second).tolist() == [True, False, False, True]


def test_state_round_trips_in_the_middle_of_a_hold() -> None:
    behaviour, logits = make("sticky", 6, rate=5.0), torch.zeros(6, 100)
    for _ in range(3):
        behaviour.act(logits)
    saved = {name: value.clone() for name, value in behaviour.state_dict().items()}
    generator = behaviour.generator.get_state()
    expected = [behaviour.act(logits).clone() for _ in range(20)]
    other = make("sticky", 6, rate=5.0)
    other.load_state_dict(saved)
    other.generator.set_state(generator)
    assert all(torch.equal(other.act(logits), e) for e in expected)


def test_an_action_of_several_parts_explores_as_a_whole() -> None:
    """With a policy that always takes (0, 0): (1, 1) by ε/4 alone, whereas parts exploring apart would give ε²/4."""
    logits = torch.tensor([50.0, 0.0, 50.0, 0.0]).expand(20_000, 4)
    choices = make("softmax", 20_000, 0.4, sizes=(2, 2)).act(logits)
    assert choices.shape == (20_000, 2)
    assert (choices == 1).all(1).float().mean().item() == pytest.approx(0.1, abs=0.01)
    assert (choices == 0).all(1).float().mean().item() == pytest.approx(0.7, abs=0.02)


def test_a_held_action_is_held_in_all_its_parts() -> None:
    behaviour, logits = make("sticky", 200, rate=6.0, sizes=(100, 100)), torch.zeros(200, 200)
    actions = torch.stack([behaviour.act(logits) for _ in range(30)])  # [T, envs, 2]
    changed = actions[1:] != actions[:-1]
    assert (changed[..., 0] == changed[..., 1]).float().mean() > 0.99
    assert 0.1 < changed.float().mean() < 0.25
