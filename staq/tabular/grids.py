"""Pendulum and MountainCar on grids: finite MDPs whose states have a vector that a network can see.

A point between grid points is the mixture of the four around it that has its mean (bilinear interpolation), so
transitions are stochastic, smooth in the state, and never stuck where a step is shorter than a cell.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from staq.tabular.mdp import MDP

RESOLUTION = 32
DISCOUNT = 0.99

Dynamics = Callable[[np.ndarray, np.ndarray, int], tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]
"""(x, v, action) → next x, next v, reward, whether the episode ends there."""


@dataclass(frozen=True)
class GridMDP:
    """A finite MDP and what a network sees of each of its states."""

    mdp: MDP
    observations: np.ndarray
    """[S, features], each of order 1"""


def pendulum(resolution: int = RESOLUTION) -> GridMDP:
    """Gymnasium's Pendulum-v1 with torques −2, 0, 2; the reward is divided by its largest magnitude."""

    def dynamics(
        angle: np.ndarray, speed: np.ndarray, action: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        torque = 2.0 * (action - 1)
        cost = (angle**2 + 0.1 * speed**2 + 0.001 * torque**2) / (np.pi**2 + 0.1 * 8**2 + 0.001 * 2**2)
        speed = np.clip(speed + 0.05 * (15.0 * np.sin(angle) + 3.0 * torque), -8, 8)
        return angle + 0.05 * speed, speed, -cost, np.zeros(angle.shape, dtype=bool)

    angles = np.linspace(-np.pi, np.pi, resolution, endpoint=False)
    speeds = np.linspace(-8, 8, resolution)
    angle, speed = _points(angles, speeds)
    observations = np.stack([np.cos(angle), np.sin(angle), speed / 8], axis=1)
    return GridMDP(_discretised(angles, speeds, 3, dynamics, period=2 * np.pi), observations)


def mountain_car(resolution: int = RESOLUTION) -> GridMDP:
    """Gymnasium's MountainCar-v0: −1 per step until the flag is reached, which ends the episode."""

    def dynamics(
        position: np.ndarray, velocity: np.ndarray, action: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        velocity = np.clip(velocity + 0.001 * (action - 1) - 0.0025 * np.cos(3 * position), -0.07, 0.07)
        moved = np.clip(position + velocity, -1.2, 0.6)
        velocity = np.where((moved <= -1.2) & (velocity < 0), 0.0, velocity)
        return moved, velocity, -np.ones(position.shape), (moved >= 0.5) & (velocity >= 0)

    positions, velocities = np.linspace(-1.2, 0.6, resolution), np.linspace(-0.07, 0.07, resolution)
    position, velocity = _points(positions, velocities)
    observations = np.stack([(position + 0.3) / 0.9, velocity / 0.07], axis=1)
    return GridMDP(_discretised(positions, velocities, 3, dynamics, period=None), observations)


def _points(xs: np.ndarray, vs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    x, v = np.meshgrid(xs, vs, indexing="ij")
    return x.ravel(), v.ravel()


def _discretised(xs: np.ndarray, vs: np.ndarray, n_actions: int, dynamics: Dynamics, period: float | None) -> MDP:
    x, v = _points(xs, vs)
    n_states = x.size
    reward = np.zeros((n_states, n_actions))
    rows, columns, masses = [], [], []
    for action in range(n_actions):
        next_x, next_v, reward[:, action], ended = dynamics(x, v, action)
        for x_index, x_mass in _neighbours(xs, next_x, period):
            for v_index, v_mass in _neighbours(vs, next_v, None):
                rows.append(np.arange(n_states) * n_actions + action)
                columns.append(x_index * len(vs) + v_index)
                masses.append(np.where(ended, 0.0, x_mass * v_mass))
    transition = sparse.csr_array(
        (np.concatenate(masses), (np.concatenate(rows), np.concatenate(columns))),
        shape=(n_states * n_actions, n_states),
    )
    return MDP(reward, transition, DISCOUNT)


def _neighbours(grid: np.ndarray, values: np.ndarray, period: float | None) -> list[tuple[np.ndarray, np.ndarray]]:
    """The grid points below and above each value, with their weights."""
    place = (values - grid[0]) / (grid[1] - grid[0])
    if period is None:
        below = np.clip(np.floor(place).astype(int), 0, len(grid) - 2)
        weight = np.clip(place - below, 0.0, 1.0)
        return [(below, 1 - weight), (below + 1, weight)]
    below = np.floor(place).astype(int)
    weight = place - below
    return [(below % len(grid), 1 - weight), ((below + 1) % len(grid), weight)]
