"""A rival's policy, as evaluations and films see it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3 import DQN
from stable_baselines3.common.base_class import BaseAlgorithm

from staq.actions import Coding


class Player:
    """Plays a model greedily or as it explores: DQN by its ε, PPO and TRPO by their policy."""

    def __init__(self, model: BaseAlgorithm) -> None:
        self.model = model
        self.action_space = model.action_space
        # Continuous actions have densities, and nothing to list.
        self.coding = None if isinstance(model.action_space, spaces.Box) else Coding(model.action_space)

    def predict(
        self, observation: Any, state: Any = None, episode_start: Any = None, deterministic: bool | np.ndarray = False
    ) -> Any:
        """As SB3's; ``deterministic`` may also be a mask that says for which observations."""
        if isinstance(deterministic, bool):
            return self.model.predict(observation, state, episode_start, deterministic)
        actions, state = self.model.predict(observation, state, episode_start)
        actions[deterministic], _ = self.model.predict(observation[deterministic], deterministic=True)
        return actions, state

    @torch.no_grad()
    def action_probabilities(self, observation: np.ndarray) -> np.ndarray:
        """π(·|s). → [B, A], or [A] for a single observation"""
        policy: Any = self.model.policy
        obs, vectorized = policy.obs_to_tensor(observation)
        if isinstance(self.model, DQN):
            q, epsilon = self.model.q_net(obs), self.model.exploration_rate
            likeliest = torch.nn.functional.one_hot(q.argmax(-1), q.shape[-1])
            probabilities = (1 - epsilon) * likeliest + epsilon / q.shape[-1]
        else:
            probabilities = _probabilities(policy.get_distribution(obs).distribution)
        found: np.ndarray = probabilities.cpu().numpy()
        return found if vectorized else found[0]

    @contextmanager
    def seeded(self, seed: int) -> Iterator[None]:
        """Draws by ``seed`` meanwhile; the run's own draws, which SB3 takes from global generators, go on as before."""
        before = random_state(self.model)
        torch.manual_seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002  # where SB3 draws from
        self.model.action_space.seed(seed)
        try:
            yield
        finally:
            set_random_state(self.model, before)


def _probabilities(distribution: Any) -> torch.Tensor:
    """Of every choice, part after part: of one Categorical, of a list of them, or of several Bernoullis."""
    if isinstance(distribution, list):
        return torch.cat([part.probs for part in distribution], dim=-1)
    probs: torch.Tensor = distribution.probs
    if isinstance(distribution, torch.distributions.Bernoulli):
        return torch.stack([1 - probs, probs], dim=-1).flatten(-2)
    return probs


def random_state(model: BaseAlgorithm) -> dict[str, Any]:
    """Every generator that a model of SB3 draws from, as plain data."""
    kind, keys, *rest = np.random.get_state()  # noqa: NPY002
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all(),  # empty where there is none
        "numpy": [kind, torch.from_numpy(np.asarray(keys).astype(np.int64)), *rest],
        "python": random.getstate(),
        "actions": model.action_space.np_random.bit_generator.state,
    }


def set_random_state(model: BaseAlgorithm, state: dict[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    torch.cuda.set_rng_state_all(state["cuda"][: torch.cuda.device_count()])
    kind, keys, *rest = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))  # noqa: NPY002
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    model.action_space.np_random.bit_generator.state = state["actions"]
