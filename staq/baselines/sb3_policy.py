"""A stable-baselines3 model as a policy that plays, is recorded and is saved as data."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.dqn.policies import DQNPolicy

from staq.actions import ActionCodec
from staq.storage.atomic_files import read, write_atomically
from staq.storage.training_state import random_state, set_random_state

PARAMETERS = "parameters.safetensors"


class SB3Policy:
    """Plays a model greedily or as it explores: DQN and PQN by their ε, PPO and TRPO by their policy."""

    def __init__(self, model: BaseAlgorithm) -> None:
        self.model = model
        self.action_space = model.action_space
        # Continuous actions have densities, and nothing to list.
        self.codec = None if isinstance(model.action_space, spaces.Box) else ActionCodec(model.action_space)

    def predict(
        self, observation: Any, state: Any = None, episode_start: Any = None, deterministic: bool | np.ndarray = False
    ) -> Any:
        """As SB3's; ``deterministic`` may also be a mask that says for which observations."""
        if isinstance(deterministic, bool):
            return self.model.predict(observation, state, episode_start, deterministic)
        actions, state = self.model.predict(observation, state, episode_start)
        if deterministic.any():
            actions[deterministic], _ = self.model.predict(observation[deterministic], deterministic=True)
        return actions, state

    @torch.no_grad()
    def action_probabilities(self, observation: np.ndarray) -> np.ndarray:
        """π(·|s). → [B, A], or [A] for a single observation"""
        policy: Any = self.model.policy
        obs, vectorized = policy.obs_to_tensor(observation)
        if isinstance(policy, DQNPolicy):
            q, epsilon = policy.q_net(obs), self.model.exploration_rate  # type: ignore[attr-defined]
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
    """Of every action index, part after part: of one Categorical, of a list of them, or of several Bernoullis."""
    if isinstance(distribution, list):
        return torch.cat([part.probs for part in distribution], dim=-1)
    probs: torch.Tensor = distribution.probs
    if isinstance(distribution, torch.distributions.Bernoulli):
        return torch.stack([1 - probs, probs], dim=-1).flatten(-2)
    return probs


def save_parameters(model: BaseAlgorithm, folder: Path) -> None:
    """What is needed to play a model whose configuration is known, as data only."""
    content = {"policy": model.policy.state_dict(), "exploration_rate": getattr(model, "exploration_rate", 0.0)}
    # The folder appears with what belongs in it: that a run has a model says that it is finished.
    partial = folder.with_name(f"{folder.name}.partial")
    partial.mkdir(parents=True, exist_ok=True)
    write_atomically(partial / PARAMETERS, content)
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)


def load_parameters(model: BaseAlgorithm, folder: Path) -> None:
    """Takes over what ``save_parameters`` wrote."""
    content = read(folder / PARAMETERS)
    model.policy.load_state_dict(content["policy"])
    if hasattr(model, "exploration_rate"):
        model.exploration_rate = content["exploration_rate"]
