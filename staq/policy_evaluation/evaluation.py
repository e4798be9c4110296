"""What the loop asks of a policy evaluation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch

from staq.actions import Factors
from staq.experience.replay import Replay
from staq.experience.rollout import Rollout
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


class TrainingProgress(NamedTuple):
    """How far a training is, when an iteration begins."""

    steps_collected: int
    """Environment steps over all calls of ``learn``."""
    remaining: float
    """From 1 at the start of this call of ``learn`` to 0 at its end."""


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

    defaults: ClassVar[Mapping[str, Any]] = {}
    """Defaults of the loop's and the improvement's hyperparameters that are other than the paper's."""
    policy_defaults: ClassVar[Mapping[str, Any]] = {}
    """The same of the policy's arguments."""
    seconds_per_checkpoint: ClassVar[float] = 0.0
    """Time between two checkpoints, where an iteration is shorter."""

    @classmethod
    def defaults_with(cls, n_envs: int, given: Mapping[str, Any]) -> dict[str, Any]:
        """Defaults for so many environments, beside what is given."""
        return dict(cls.defaults)

    @property
    def advice(self) -> str | None:
        """What would make training better or faster, for a warning."""
        return None

    def __init__(self, policy: StaQPolicy, n_envs: int, generators: dict[str, torch.Generator], phases: Phases) -> None:
        self.policy, self.n_envs, self.generators, self.phases = policy, n_envs, generators, phases
        self.factors = policy.codec.factors

    @abstractmethod
    def make_experience(self, shared: Shared, settings: Any) -> Replay | Rollout:
        """Where the steps of an iteration are stored."""

    def learning_rate_factor(self, shared: Shared, settings: Any, progress: TrainingProgress) -> float:
        """By which the learning rate is multiplied in this iteration."""
        return 1.0

    def rollouts(self, settings: Any) -> int:
        """After how many iterations the policy is improved."""
        return 1

    @abstractmethod
    def evaluate(self, experience: Any, shared: Shared, settings: Any, step_size: StepSize) -> Evaluated:
        """Brings ``policy.q_net`` from q_{k−1} to q_k."""


def taken_actions(indices: torch.Tensor, factors: Factors) -> torch.Tensor:
    """1 where an action was taken, else 0. [..., B(, D)] → [..., A, B]"""
    batches = indices.shape if factors.single else indices.shape[:-1]
    taken = torch.zeros((*batches[:-1], factors.n_outputs, batches[-1]), device=indices.device)
    return taken.scatter_(-2, factors.outputs_of(indices), 1.0)


def known_only(
    targets: torch.Tensor, taken: torch.Tensor, known: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Targets [..., B] and taken actions [..., A, B] by which steps whose target is not known change nothing.

    Their q and their target are 0, so that they add nothing to the loss.
    """
    if known is None:
        return targets, taken
    return targets.where(known, 0.0), taken * known.unsqueeze(-2)
