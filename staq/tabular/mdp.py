"""Finite Markov decision processes: from arrays, at random, or from Gymnasium's toy-text environments."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import sparse


@dataclass(frozen=True)
class MDP:
    """A finite MDP. A transition that ends the episode is mass missing from its row: nothing follows it."""

    reward: np.ndarray
    """R [S, A]"""
    transition: Any
    """P [S·A, S], row s·A + a, an array or a SciPy sparse matrix. Rows sum to at most 1."""
    discount: float
    """γ"""
    allowed: np.ndarray | None = None
    """A(s) as a mask [S, A], if it is not all of A; made by ``masked``."""
    twin: np.ndarray | None = None
    """Of a masked MDP, the allowed action that stands for each [S, A]: its own number, if it is allowed."""

    def __post_init__(self) -> None:
        n_states, n_actions = self.reward.shape
        if self.transition.shape != (n_states * n_actions, n_states):
            raise ValueError(
                f"transition has shape {self.transition.shape}; for a reward of shape {self.reward.shape} it must be "
                f"{(n_states * n_actions, n_states)}, row s·A + a."
            )
        if not 0 <= self.discount < 1:
            raise ValueError(f"discount={self.discount}: it must be at least 0 and below 1.")
        rows = np.asarray(self.transition.sum(axis=1)).ravel()
        negative = (self.transition.data if sparse.issparse(self.transition) else self.transition).min(initial=0) < 0
        if negative or rows.max() > 1 + 1e-9:
            raise ValueError("transition must have rows of probabilities: none negative, none with a sum above 1.")

    @property
    def n_states(self) -> int:
        return int(self.reward.shape[0])

    @property
    def n_actions(self) -> int:
        return int(self.reward.shape[1])

    def expected(self, value: np.ndarray) -> np.ndarray:
        """P v: the expectation of a function of the next state. [S] → [S, A]"""
        return np.asarray(self.transition @ value).reshape(self.reward.shape)

    def on_allowed(self, f: np.ndarray) -> np.ndarray:
        """A function of allowed actions, repeated where one stands for a forbidden one. [S, A] → [S, A]"""
        return f if self.twin is None else np.take_along_axis(f, self.twin, axis=1)


def masked(mdp: MDP, allowed: np.ndarray) -> MDP:
    """The MDP with A(s) instead of A in every state.

    A forbidden action becomes the twin of an allowed one, with its reward and its transitions, that no policy can
    take. Every function of (s, a) then has the same value at both, so that a norm or a maximum over A is one over A(s),
    and only policies need the mask.
    """
    if allowed.shape != mdp.reward.shape or not allowed.any(-1).all():
        raise ValueError(f"allowed must be a mask of shape {mdp.reward.shape} that allows something in every state.")
    twin = np.where(allowed, np.arange(mdp.n_actions), allowed.argmax(-1)[:, None])
    rows = (np.arange(mdp.n_states)[:, None] * mdp.n_actions + twin).ravel()
    reward = np.take_along_axis(mdp.reward, twin, axis=1)
    return replace(mdp, reward=reward, transition=mdp.transition[rows], allowed=allowed, twin=twin)


def dirichlet(n_states: int, n_actions: int, discount: float, rng: np.random.Generator) -> MDP:
    """Dense: every next state possible, rewards uniform in [−1, 1]."""
    transition = rng.dirichlet(np.full(n_states, 0.5), size=n_states * n_actions)
    return MDP(rng.uniform(-1, 1, (n_states, n_actions)), transition, discount)


def garnet(n_states: int, n_actions: int, branching: int, discount: float, rng: np.random.Generator) -> MDP:
    """Sparse: ``branching`` possible next states per state and action, rewards standard normal."""
    if not 1 <= branching <= n_states:
        raise ValueError(f"branching={branching}: it must be between 1 and the number of states, {n_states}.")
    rows = n_states * n_actions
    # The order of random keys draws without replacement; where states are many, collisions are removed by hand.
    columns = rng.integers(n_states, size=(rows, branching))
    for row in np.flatnonzero((np.sort(columns)[:, 1:] == np.sort(columns)[:, :-1]).any(axis=1)):
        columns[row] = rng.choice(n_states, branching, replace=False)
    probabilities = rng.dirichlet(np.ones(branching), size=rows)
    index = np.repeat(np.arange(rows), branching)
    transition = sparse.csr_array((probabilities.ravel(), (index, columns.ravel())), shape=(rows, n_states))
    return MDP(rng.normal(size=(n_states, n_actions)), transition, discount)


def from_toy_text(env: Any, discount: float) -> MDP:
    """FrozenLake, Taxi or CliffWalking, from the table ``env.unwrapped.P[s][a] = [(p, s', r, terminated), …]``."""
    table = getattr(env.unwrapped, "P", None)
    if table is None:
        raise ValueError(f"{env} has no table of transitions: FrozenLake, Taxi and CliffWalking have one.")
    n_states, n_actions = int(env.observation_space.n), int(env.action_space.n)
    reward = np.zeros((n_states, n_actions))
    transition = sparse.lil_array((n_states * n_actions, n_states))
    for s in range(n_states):
        for a in range(n_actions):
            for probability, next_state, r, terminated in table[s][a]:
                reward[s, a] += probability * r
                if not terminated:
                    transition[s * n_actions + a, next_state] += probability
    return MDP(reward, transition.tocsr(), discount)
