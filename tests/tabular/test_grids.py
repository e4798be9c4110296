"""The discretised environments against the equations they come from."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from staq.tabular.grids import GridMDP, mountain_car, pendulum
from staq.tabular.operators import optimal_q, policy_of


@pytest.mark.parametrize("make", [pendulum, mountain_car])
def test_rows_are_distributions_or_ends(make: object) -> None:
    grid: GridMDP = make()  # type: ignore[operator]
    sums = np.asarray(grid.mdp.transition.sum(axis=1)).ravel()
    assert np.all(np.isclose(sums, 1) | np.isclose(sums, 0))
    assert grid.mdp.reward.shape == (1024, 3)
    assert np.abs(grid.observations).max() <= 1.01
    assert -1 <= grid.mdp.reward.min() <= grid.mdp.reward.max() <= 0


def test_the_mean_of_the_next_state_is_gymnasiums() -> None:
    """Position and velocity of MountainCar, from grid points away from the borders."""
    grid, env = mountain_car(), gymnasium.make("MountainCar-v0").unwrapped
    positions, velocities = np.linspace(-1.2, 0.6, 32), np.linspace(-0.07, 0.07, 32)
    for i, j, action in ((12, 15, 2), (20, 10, 0), (16, 20, 1)):
        env.state = (positions[i], velocities[j])  # type: ignore[attr-defined]
        expected, *_ = env.step(action)
        row = grid.mdp.transition[[(i * 32 + j) * 3 + action]].toarray()[0].reshape(32, 32)
        assert row.sum(1) @ positions == pytest.approx(expected[0], abs=1e-6)
        assert row.sum(0) @ velocities == pytest.approx(expected[1], abs=1e-6)


def test_the_pendulum_is_gymnasiums_and_periodic() -> None:
    grid, env = pendulum(), gymnasium.make("Pendulum-v1").unwrapped
    angles, speeds = np.linspace(-np.pi, np.pi, 32, endpoint=False), np.linspace(-8, 8, 32)
    env.reset(seed=0)
    for i, j, action in ((5, 12, 0), (16, 15, 2), (31, 20, 1)):
        env.state = np.array([angles[i], speeds[j]])  # type: ignore[attr-defined]
        expected, reward, *_ = env.step(np.array([2.0 * (action - 1)], dtype=np.float32))
        row = grid.mdp.transition[[(i * 32 + j) * 3 + action]].toarray()[0].reshape(32, 32)
        assert row.sum(0) @ speeds == pytest.approx(expected[2], abs=1e-5)
        direction = np.angle(row.sum(1) @ np.exp(1j * angles))
        assert np.cos(direction - np.arctan2(expected[1], expected[0])) == pytest.approx(1, abs=1e-2)
        assert grid.mdp.reward[i * 32 + j, action] * 16.2736 == pytest.approx(float(reward), abs=1e-3)


def test_good_policies_solve_them() -> None:
    """Greedy with respect to Q*: the car's value from the valley is that of a finite journey, not of −1 for ever."""
    grid = mountain_car()
    q = optimal_q(grid.mdp, 0.01, 1e-8)
    start = 12 * 32 + 15  # about −0.5, at rest
    assert q[start].max() > -90  # −100 is never arriving
    upright = 16 * 32 + 15
    hanging = 0 * 32 + 15
    values = optimal_q(pendulum().mdp, 0.01, 1e-8).max(1)
    assert values[upright] > values[hanging]
    assert policy_of(q).shape == (1024, 3)
