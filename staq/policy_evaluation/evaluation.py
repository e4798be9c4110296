"""What the loop asks of a policy evaluation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from staq.experience.replay import Replay
from staq.hyperparameters import Group, Shared
from staq.phases import Phases
from staq.policy_improvement.mirror_descent import StepSize

if TYPE_CHECKING:
    from staq.policies import StaQPolicy


class Evaluated(NamedTuple):
    """What is logged of one evaluation."""

    gradient_steps: int
    loss: float
    """Mean over the critics' last minibatches, summed over critics."""
    mean_abs_q: float
    """Of the actions taken: critics that run away show here first."""


class PolicyEvaluation(ABC):
    """From experience under π_k to q_k, the networks ``policy.q_net``.

    A new one says what experience it needs (``make_experience``) and how q_k comes out of it (``evaluate``). It knows
    the policy's logits, which come with the experience, but not how the policy is improved.

    :param policy: whose networks and optimiser it trains
    :param n_envs: environments that are stepped together
    :param generators: of random numbers, by what they are for
    :param phases: measures what its parts take
    """

    @dataclass(frozen=True)
    class Settings(Group):
        """Hyperparameters of this evaluation: none, unless it says so."""

    def __init__(self, policy: StaQPolicy, n_envs: int, generators: dict[str, torch.Generator], phases: Phases) -> None:
        self.policy, self.n_envs, self.generators, self.phases = policy, n_envs, generators, phases
        self.factors = policy.codec.factors

    @abstractmethod
    def make_experience(self, settings: Any) -> Replay:
        """Where the steps of an iteration are stored."""

    @abstractmethod
    def evaluate(self, experience: Any, shared: Shared, settings: Any, step_size: StepSize) -> Evaluated:
        """Brings ``policy.q_net`` from q_{k−1} to q_k."""
