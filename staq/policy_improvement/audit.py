"""How far a stack is from exact mirror descent, recomputed from every network that was ever pushed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch

from staq.networks.architecture import Architecture
from staq.policy_improvement.mirror_descent import kl_divergence
from staq.policy_improvement.q_stack import QStack
from staq.storage.snapshots import Snapshot

LEAST_STATES = 1000


@dataclass(frozen=True)
class Distance:
    """Of one policy to the exact one, on the states visited last."""

    pushes: int
    networks: int
    mean_kl: float
    """KL(exact; audited), mean over states."""
    largest_kl: float
    greedy_agreement: float
    """Share of states where both have the same likeliest action."""
    kl_bound: float
    """What the training said that ``mean_kl`` is at most."""
    median_policy_kl: float
    """How far one policy update goes, to compare with."""
    states: int


def audit(
    architecture: Architecture, n_critics: int, snapshots: Iterable[Snapshot], wanted: Callable[[int], bool]
) -> Iterator[Distance]:
    """Recomputes Eq. 1 push by push, and compares where it is wanted.

    :param wanted: after how many pushes to compare; the policy of too few states is passed over
    """
    exact, audited = (QStack(architecture, n_critics, None) for _ in range(2))
    states: deque[torch.Tensor] = deque()
    for snapshot in snapshots:
        exact.push(snapshot.pushed, snapshot.beta, snapshot.stack["relative_weights"][-1])
        states.append(snapshot.states)
        while sum(map(len, states)) - len(states[0]) >= LEAST_STATES:
            states.popleft()
        if wanted(exact.n_pushed) and sum(map(len, states)) >= LEAST_STATES:
            snapshot.restore(audited)
            exact.prefactor = snapshot.exact_prefactor
            yield distance(exact, audited, torch.cat(list(states)), snapshot)


def distance(exact: QStack, audited: QStack, states: torch.Tensor, snapshot: Snapshot) -> Distance:
    """Compares two stacks on some states."""
    factors = exact.architecture.factors
    one, other = (factors.log_softmax(stack.logits(stack.accumulated(states))) for stack in (exact, audited))
    kl, same = kl_divergence(one, other), factors.likeliest(one) == factors.likeliest(other)
    return Distance(
        pushes=audited.n_pushed,
        networks=len(audited),
        mean_kl=float(kl.mean()),
        largest_kl=float(kl.max()),
        greedy_agreement=float(same.double().mean()),
        kl_bound=snapshot.kl_bound,
        median_policy_kl=snapshot.median_policy_kl,
        states=len(states),
    )
