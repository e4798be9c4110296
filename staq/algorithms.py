"""StaQ and its relatives: one loop, and a policy update each. The difference between two classes is their update.

class            policy update                                                    paper
StaQ             push q_k onto a stack of M                                       Eq. 2
ExactPMD         push q_k onto a stack without a limit                            Eq. 1
ACNoKL           an actor, KL(π; softmax(q_k/τ))                                  App. C.1, SAC
ACMProj          an actor, KL(π_k^β exp(α q_k)/Z; π)                              App. C.3, ECPO
ACDirectOpt      an actor, q_k·π − τh(π) − η KL(π; π_k)                           App. C.3, MDPO
NatGrad          a natural gradient step on an actor, with a line search          App. C.3, TRPO
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from staq.algorithm import PolicyMirrorDescent
from staq.optimizer import LeanAdam
from staq.policies import StaQPolicy
from staq.q_networks import Architecture
from staq.updates import GradientActor, NaturalGradientUpdate, PolicyUpdate, StackUpdate
from staq.updates.actor import Loss, direct, information_projection, moment_projection
from staq.updates.stack import Weighting

LARGE_STACK = 10
"""Networks from which on acting in a single environment is worth a word."""


class StaQ(PolicyMirrorDescent):
    """Finite-memory (or exact) policy mirror descent: the policy is the softmax of the last M Q-functions' sum.

    :param memory_size: M, how many Q-functions the policy keeps; None keeps all (exact mirror descent)
    :param weighting: which α an old Q-function has under annealing: that of the "current" iteration as in the
        paper's experiments, or the one it was pushed with ("exact" maximiser of the update's objective)

    All else as in ``PolicyMirrorDescent``.
    """

    def __init__(
        self,
        policy: str | type[StaQPolicy],
        env: Any,
        *shared: Any,
        memory_size: int | None = 300,
        weighting: Weighting = "current",
        **more: Any,
    ) -> None:
        self.memory_size = memory_size
        self.weighting: Weighting = weighting
        self._advised = False
        super().__init__(policy, env, *shared, **more)

    def _make_update(self) -> Callable[[Architecture, int], PolicyUpdate]:
        return partial(StackUpdate, memory_size=self.memory_size, weighting=self.weighting)

    def _setup_learn(self, *arguments: Any, **keywords: Any) -> Any:
        large = self.memory_size is None or self.memory_size > LARGE_STACK
        if self.n_envs == 1 and large and not self._advised:
            self._advised = True
            warnings.warn(
                f"{type(self).__name__} acts with its whole stack of networks. With one environment that is bound by "
                "reading their weights; make_vec_env(env, n_envs=50) reads them once for 50 steps and trains several "
                "times faster.",
                stacklevel=3,
            )
        return super()._setup_learn(*arguments, **keywords)


class ExactPMD(StaQ):
    """Policy mirror descent that forgets nothing: StaQ without a limit of memory.

    All else as in ``StaQ``.
    """

    def __init__(
        self,
        policy: str | type[StaQPolicy],
        env: Any,
        *shared: Any,
        memory_size: None = None,
        **more: Any,
    ) -> None:
        if memory_size is not None:
            raise ValueError(f"memory_size={memory_size}: ExactPMD keeps every Q-function; use StaQ for a limit.")
        super().__init__(policy, env, *shared, memory_size=None, **more)


class ActorCritic(PolicyMirrorDescent):
    """The policy is one network that takes gradient steps on a loss.

    :param actor_steps: m, gradient steps of the actor per iteration

    All else as in ``PolicyMirrorDescent``; the actor has the critics' architecture, optimiser, learning rate and batch
    size.
    """

    loss: ClassVar[Loss]
    regularised: ClassVar[bool] = True

    def __init__(
        self, policy: str | type[StaQPolicy], env: Any, *shared: Any, actor_steps: int = 5000, **more: Any
    ) -> None:
        self.actor_steps = actor_steps
        super().__init__(policy, env, *shared, **more)

    def _make_update(self) -> Callable[[Architecture, int], PolicyUpdate]:
        optimizer_class = self.policy_kwargs.get("optimizer_class", LeanAdam)
        return partial(
            GradientActor,
            loss=type(self).loss,
            actor_steps=self.actor_steps,
            batch_size=self.batch_size,
            make_optimizer=partial(optimizer_class, **(self.policy_kwargs.get("optimizer_kwargs") or {})),
            regularised=self.regularised,
        )


class ACNoKL(ActorCritic):
    """AC-NoKL (SAC): an actor trained towards softmax(q/τ), which StaQ with M = 1 is without one."""

    loss = information_projection
    regularised = False


class ACMProj(ActorCritic):
    """AC-MProj (ECPO): an actor trained by the M-projection of the mirror descent step."""

    loss = moment_projection


class ACDirectOpt(ActorCritic):
    """AC-DirectOpt (MDPO): an actor trained on the mirror descent objective itself."""

    loss = direct


class NatGrad(PolicyMirrorDescent):
    """NatGrad + LS (TRPO): a natural gradient step on an actor, within a divergence of ``max_kl``.

    :param max_kl: ε_KL, the largest mean divergence from the previous policy
    :param cg_steps: of conjugate gradients
    :param cg_damping: added to the diagonal of the Fisher information
    :param line_search_steps: how often the step is shortened before it is given up

    All else as in ``PolicyMirrorDescent``; ``kl_weight`` plays no part.
    """

    def __init__(
        self,
        policy: str | type[StaQPolicy],
        env: Any,
        *shared: Any,
        max_kl: float = 0.001,
        cg_steps: int = 10,
        cg_damping: float = 0.01,
        line_search_steps: int = 10,
        **more: Any,
    ) -> None:
        self.max_kl = max_kl
        self.cg_steps = cg_steps
        self.cg_damping = cg_damping
        self.line_search_steps = line_search_steps
        super().__init__(policy, env, *shared, **more)

    def _make_update(self) -> Callable[[Architecture, int], PolicyUpdate]:
        return partial(
            NaturalGradientUpdate,
            max_kl=self.max_kl,
            cg_steps=self.cg_steps,
            cg_damping=self.cg_damping,
            line_search_steps=self.line_search_steps,
        )


FAMILY: dict[str, type[PolicyMirrorDescent]] = {
    "staq": StaQ,
    "exact-pmd": ExactPMD,
    "ac-nokl": ACNoKL,
    "ac-mproj": ACMProj,
    "ac-directopt": ACDirectOpt,
    "natgrad": NatGrad,
}
"""By the names of the command line."""
