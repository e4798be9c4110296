"""The critics of a policy by themselves, as stable-baselines3's users know them: ``model.q_net``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from stable_baselines3.common.utils import get_device

from staq.networks.ensemble import QEnsemble
from staq.storage import model_file
from staq.storage.plain_data import DamagedFile
from staq.storage.policy_shapes import check_fits, critics_of

if TYPE_CHECKING:
    from staq.policies import StaQPolicy


class Critics(QEnsemble):
    """A policy's critics. Alone they play greedily on their mean q, are saved and loaded, as SB3's ``q_net`` is."""

    def __init__(self, policy: StaQPolicy, n_networks: int) -> None:
        super().__init__(policy.architecture, n_networks)
        self._policy = (policy,)  # in a tuple: the whole is no module of its part

    @torch.no_grad()
    def predict(self, observation: np.ndarray, *_: Any, deterministic: bool = True) -> tuple[np.ndarray, None]:
        """The greedy actions, whatever is asked for: critics have no other."""
        (policy,) = self._policy
        obs, vectorized = policy.obs_to_tensor(observation)
        actions = policy.codec.actions(policy.codec.factors.likeliest(self(obs).mean(0).t()).cpu().numpy())
        return (actions if vectorized else actions[0]), None

    def save(self, path: str) -> None:
        """Write the critics alone, as ``StaQPolicy.save`` writes all of it."""
        (policy,) = self._policy
        arguments = {"policy_class": type(policy), **policy.saved_arguments()}
        model_file.write(path, type(self).__name__, arguments, {"q_net": self.state_dict()})

    @classmethod
    def load(cls, path: str, device: torch.device | str = "auto", trust: bool = False) -> Critics:
        """What ``save`` wrote; ``trust`` as in ``StaQPolicy.load``."""
        saved = model_file.read(path, trust)
        try:
            arguments, weights = dict(saved.attributes), saved.parameters["q_net"]
            policy_class = arguments.pop("policy_class")
            if not trust:
                check_fits(policy_class, arguments, critics_of({f"q_net.{name}": w for name, w in weights.items()}))
            critics: Critics = policy_class(lr_schedule=lambda _: 0.0, **arguments).q_net
            critics.load_state_dict(weights)
        except model_file.Damage as error:
            raise DamagedFile(f"{path} holds no {cls.__name__} ({type(error).__name__}: {error})") from error
        return critics.to(get_device(device))
