"""A policy for deployment: many networks condensed into few, or one, and what that changes.

Neighbours of a stack are merged into groups of equal weight; then gradient steps bring the groups' sum nearer to the
whole. That is for a policy that is only used: a training, which learns from the result, merges in closed form
(``merging``).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from staq.policies import StaQPolicy
from staq.policy_improvement.improvement import mean_centred
from staq.policy_improvement.merging import merge
from staq.policy_improvement.mirror_descent import kl_divergence
from staq.policy_improvement.q_stack import QStack
from staq.policy_improvement.stack import Stack
from staq.storage.export import export_policy

MOST_STATES = 10_000
"""States that a policy is condensed on; a fifth of them is kept for measuring."""
DISTILLATION_STEPS, BATCH_SIZE, LEARNING_RATE = 1000, 256, 1e-3


@dataclass(frozen=True)
class Condensed:
    """A small policy, and how far it is from the one that it was made of, on states that it was not fitted to."""

    policy: StaQPolicy
    networks: int
    of_networks: int
    """How many it was made of."""
    kl: float
    """Mean KL(original; condensed)."""
    greedy_agreement: float
    """Share of states where both have the same likeliest action."""
    states: int
    """On which this was measured."""

    def export(self, path: str | Path, environment: str | None = None, boundary_actions: bool = False) -> Path:
        """Writes the policy as ``model.export`` does, with what was measured in its description."""
        measured = {name: value for name, value in vars(self).items() if name != "policy"}
        return export_policy(self.policy, path, environment, boundary_actions, condensed=measured)


def condense(
    policy: StaQPolicy, obs: torch.Tensor, n_networks: int | None = None, max_kl: float | None = None
) -> Condensed:
    """Condenses a policy on visited states.

    :param n_networks: how many networks (ensembles of critics) it may have
    :param max_kl: or how far it may be: the fewest networks of 1, 2, 4 … that are as near are taken
    """
    improvement = policy.improvement
    if not isinstance(improvement, Stack) or len(improvement.stack) == 0:
        raise ValueError("There is nothing to condense: the policy is not made of a stack of networks.")
    if (n_networks is None) == (max_kl is None):
        raise ValueError("Say either n_networks, how many networks are wanted, or max_kl, how far they may be.")
    if n_networks is not None and n_networks < 1:
        raise ValueError(f"n_networks={n_networks}: it must be at least 1.")
    if max_kl is not None and not max_kl > 0:
        raise ValueError(f"max_kl={max_kl}: it must be positive.")
    n = 1 if n_networks is None else min(n_networks, len(improvement.stack))
    while True:
        found = _condensed_to(policy, improvement.stack, obs, n)
        if max_kl is None or found.kl <= max_kl or n == len(improvement.stack):
            return found
        n = min(2 * n, len(improvement.stack))


def _condensed_to(policy: StaQPolicy, stack: QStack, obs: torch.Tensor, n: int) -> Condensed:
    generator = torch.Generator().manual_seed(0)  # the same policy gives the same condensed one
    obs = obs[torch.randperm(len(obs), generator=generator)[:MOST_STATES].to(obs.device)]
    measured = torch.arange(len(obs), device=obs.device) % 5 == 0
    fit, test = obs[~measured], obs[measured]
    log_pi = _log_policy(stack, obs)
    small = _with_stack(policy, stack, n, fit, test)
    if n < len(stack):
        merged = small.state_dict()
        before = _log_policy(small, fit)
        distill(small, fit, log_pi[~measured], generator)
        if _mean_kl(log_pi[~measured], before) < _mean_kl(log_pi[~measured], _log_policy(small, fit)):
            small.load_state_dict(merged)  # what was near already, gradient steps may have moved away
    after, likeliest = _log_policy(small, test), policy.codec.factors.likeliest
    return Condensed(
        policy=_policy_like(policy, small),
        networks=n,
        of_networks=len(stack),
        kl=_mean_kl(log_pi[measured], after),
        greedy_agreement=float((likeliest(log_pi[measured]) == likeliest(after)).double().mean()),
        states=len(test),
    )


def _log_policy(stack: QStack, obs: torch.Tensor) -> torch.Tensor:
    return stack.architecture.factors.log_softmax(stack.logits(stack.accumulated(obs)))


def _mean_kl(log_p: torch.Tensor, log_q: torch.Tensor) -> float:
    return float(kl_divergence(log_p, log_q).mean())


def groups(weights: list[float], n: int) -> list[tuple[int, int]]:
    """n runs of neighbours of about equal weight, none empty: where each starts and stops."""
    cumulated, edges = torch.tensor(weights, dtype=torch.float64).cumsum(0), [0]
    for i in range(1, n):
        edge = int(torch.searchsorted(cumulated, cumulated[-1] * i / n)) + 1
        edges.append(min(max(edge, edges[-1] + 1), len(weights) - n + i))
    return list(pairwise([*edges, len(weights)]))


def _with_stack(policy: StaQPolicy, stack: QStack, n: int, fit: torch.Tensor, test: torch.Tensor) -> QStack:
    """A stack of n merged groups."""
    small = QStack(policy.architecture, stack.n_critics, None, stack.device)
    small.load_state_dict(stack.state_dict())
    # The newest group first, so that the indices of the others stay.
    for start, stop in reversed(groups(stack.relative_weights, n)):
        if stop - start > 1:
            members = [small.ensemble(entry) for entry in small.entries[start:stop]]
            weights = [entry.weight for entry in small.entries[start:stop]]
            small.merge(start, stop, merge(policy.architecture, members, weights, fit, test).weights)
    return small


def distill(stack: QStack, obs: torch.Tensor, log_pi: torch.Tensor, generator: torch.Generator) -> None:
    """Gradient steps on KL(π; π of the stack), from the stack's own weights."""
    architecture, factors = stack.architecture, stack.architecture.factors
    state = stack.state()
    weights = {name: w.clone().requires_grad_(name not in architecture.fixed) for name, w in state["networks"].items()}
    shares = torch.tensor(stack.relative_weights, device=stack.device).repeat_interleave(stack.n_critics)
    trained = [w for w in weights.values() if w.requires_grad]
    optimizer = torch.optim.Adam(trained, lr=LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, DISTILLATION_STEPS)
    for _ in range(DISTILLATION_STEPS):
        rows = torch.randint(len(obs), (BATCH_SIZE,), generator=generator).to(obs.device)
        q = architecture.q_values(weights, obs[rows]) * shares[:, None, None]  # [n·E, A, B]
        after = factors.log_softmax(stack.logits(mean_centred(q, factors) * len(stack)))
        loss = kl_divergence(log_pi[rows], after).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    stack.load_state(state | {"networks": {name: w.detach() for name, w in weights.items()}})


def _policy_like(policy: StaQPolicy, stack: QStack) -> StaQPolicy:
    """The policy with another stack."""
    settings = Stack.Settings(memory_size=None)
    arguments: dict[str, Any] = policy._get_constructor_parameters()
    arguments |= {"make_improvement": partial(Stack, settings=settings)}
    other = type(policy)(**arguments).to(policy.device)
    other.q_net.load_state_dict(policy.q_net.state_dict())
    improvement = other.improvement
    assert isinstance(improvement, Stack)
    improvement.stack.load_state_dict(stack.state_dict())
    other.masked = policy.masked
    return other
