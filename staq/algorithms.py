"""StaQ and its variants: one loop, and a policy improvement each. The difference between two classes is that value.

class            policy improvement                                               paper
StaQ             push q_k onto a stack of M                                       Eq. 2
ExactPMD         push q_k onto a stack without a limit                            Eq. 1
ACNoKL           an actor, KL(π; softmax(q_k/τ))                                  App. C.1, SAC
ACMProj          an actor, KL(π_k^β exp(α q_k)/Z; π)                              App. C.3, ECPO
ACDirectOpt      an actor, q_k·π − τh(π) − η KL(π; π_k)                           App. C.3, MDPO
NatGrad          a natural gradient step on an actor, with a line search          App. C.3, TRPO

``staq.registry`` lists them by name.
"""

from __future__ import annotations

from staq.loop import PolicyMirrorDescent
from staq.policy_improvement.actor import DirectOptimization, InformationProjection, MomentProjection
from staq.policy_improvement.natural_gradient import NaturalGradient
from staq.policy_improvement.stack import Stack, UnlimitedStack

LARGE_STACK = 10
"""Networks from which on acting in a single environment is worth a word."""


class StaQ(PolicyMirrorDescent):
    """Finite-memory (or exact) policy mirror descent: the policy is the softmax of the last M Q-functions' sum."""

    improvement = Stack
    memory_size: int | None

    def _advice(self) -> list[str]:
        large = self.memory_size is None or self.memory_size > LARGE_STACK
        if self._advised or self.n_envs > 1 or not large:
            return super()._advice()
        return [
            *super()._advice(),
            f"{type(self).__name__} acts with its whole stack of networks. With one environment that is bound by "
            "reading their weights; make_vec_env(env, n_envs=50) reads them once for 50 steps and trains several "
            "times faster.",
        ]


class ExactPMD(StaQ):
    """Policy mirror descent that forgets nothing: StaQ without a limit of memory."""

    improvement = UnlimitedStack


class ACNoKL(PolicyMirrorDescent):
    """AC-NoKL (SAC): an actor trained towards softmax(q/τ), which StaQ with M = 1 is without one."""

    improvement = InformationProjection


class ACMProj(PolicyMirrorDescent):
    """AC-MProj (ECPO): an actor trained by the M-projection of the mirror descent step."""

    improvement = MomentProjection


class ACDirectOpt(PolicyMirrorDescent):
    """AC-DirectOpt (MDPO): an actor trained on the mirror descent objective itself."""

    improvement = DirectOptimization


class NatGrad(PolicyMirrorDescent):
    """NatGrad + LS (TRPO): a natural gradient step on an actor, within a divergence of ``max_kl``."""

    improvement = NaturalGradient
