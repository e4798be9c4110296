"""Merging neighbours of a stack: exact mirror descent in O(log k) networks, each merge measured before it is made.

A merged ensemble has the weighted mean of its members' trunks, and the output layers that come nearest to the weighted
sum of its members on visited states. No gradient steps. What a merge would change is measured on states that it was not
fitted to; it is made only if that is less than a fraction of what an ordinary policy update changes.

Merges add up: c of the merged stack and of exact mirror descent differ by e_{k+1} = β_k (e_k + Σ δ), with δ the merges
made before push k, so that ‖e‖ is at most the β-discounted sum of the ‖δ‖ (``docs/theory.md``).
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from staq.actions import Factors
from staq.networks.architecture import OUTPUT_BIAS, OUTPUT_WEIGHT, Architecture, Weights, output
from staq.networks.chunks import chunks
from staq.policy_improvement.improvement import mean_centred
from staq.policy_improvement.mirror_descent import kl_divergence

if TYPE_CHECKING:
    from staq.experience.states import States
    from staq.policy_improvement.q_stack import QStack

PER_SIZE = 4
"""Entries of each size, at most: k pushes are then 4 log₂(k/4 + 1) networks, thirty for a thousand."""
FIT_STATES, TEST_STATES = 1000, 500
"""States that a merge is fitted to, and others that it is measured on."""
RIDGE = 1e-3
"""Of the least squares, relative to the features' mean square."""
TAIL = 0.01
"""Share of states, the worst ones, whose mean error is accounted for."""
UPDATES_REMEMBERED = 50
"""Policy updates whose median movement is the measure of a merge."""


class Merged(NamedTuple):
    """An ensemble in place of several, and what it changes on the states where it was measured."""

    weights: dict[str, torch.Tensor]
    change: torch.Tensor
    """Of c, [n, A]."""


class Merging:
    """Decides which neighbours of a stack are merged, and accounts for what that changes.

    An exponential histogram: when there are more than ``PER_SIZE`` entries of a size, the two oldest of them become one
    of twice the size. A pair whose merge would change too much stays as it is, and is tried again after as many
    pushes as it stands for.
    """

    def __init__(self) -> None:
        self.movements: deque[float] = deque(maxlen=UPDATES_REMEMBERED)
        """Mean KL of the last policy updates."""
        self.distance = 0.0
        """D, a bound on the distance of c to that of exact mirror descent (``span_norm``, ``docs/theory.md``)."""
        self.last_kl = 0.0
        """Mean KL of the last update's merges, in all."""
        self.refused: dict[int, int] = {}
        """After which push a refused pair is tried again, by its first push."""

    @torch.no_grad()
    def merge_due(self, stack: QStack, states: States, tolerance: float) -> None:
        """Merges what is due and changes the policy by a mean KL below ``tolerance`` of a median update."""
        self.last_kl = 0.0
        if not self.movements:
            return
        allowed, below = tolerance * self.median_movement, len(stack)
        while (start := pair_due([entry.n_pushes for entry in stack.entries], below)) is not None:
            below, pair = start, stack.entries[start : start + 2]
            if self.refused.get(pair[0].first, 0) > stack.n_pushed:
                continue
            members, weights = [stack.ensemble(entry) for entry in pair], [entry.weight for entry in pair]
            fit, test = split(len(states))
            merged = merge(stack.architecture, members, weights, states.obs[fit], states.obs[test])
            kl = self._moved(stack, states.log_pi_at(test), merged.change)
            if kl < allowed:
                stack.merge(start, start + 2, merged.weights)
                self.last_kl += kl
                self.distance += span_norm(merged.change, stack.architecture.factors)
                below = len(stack)  # the new entry may be one too many of its size
            else:
                self.refused[pair[0].first] = stack.n_pushed + sum(entry.n_pushes for entry in pair)
        self.refused = {first: push for first, push in self.refused.items() if push > stack.n_pushed}

    @property
    def median_movement(self) -> float:
        """Mean KL of a median policy update."""
        return statistics.median(self.movements) if self.movements else 0.0

    def _moved(self, stack: QStack, log_pi: torch.Tensor, change: torch.Tensor) -> float:
        """Mean KL(π; π after a merge) on the states where it was measured."""
        after = stack.architecture.factors.log_softmax(log_pi + stack.logits(change))
        return float(kl_divergence(log_pi.double(), after).mean())

    def kl_bound(self, prefactor: float) -> float:
        """Bound on the mean KL to exact mirror descent: KL ≤ span(ξ − ξ')²/8 for softmax policies."""
        return (prefactor * self.distance) ** 2 / 8

    def state_dict(self) -> dict[str, Any]:
        return {"movements": list(self.movements), "distance": self.distance, "refused": dict(self.refused)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.movements = deque(state["movements"], maxlen=UPDATES_REMEMBERED)
        self.distance, self.refused = state["distance"], dict(state["refused"])


def pair_due(sizes: Sequence[int], below: int) -> int | None:
    """The newest pair that an exponential histogram has too many of: where it begins, below an index.

    :param sizes: pushes per entry, oldest first: they fall by powers of two
    """
    for start in range(min(below, len(sizes)) - 1, -1, -1):
        oldest_of_its_size = start == 0 or sizes[start - 1] != sizes[start]
        if oldest_of_its_size and list(sizes[start:]).count(sizes[start]) > PER_SIZE:
            return start
    return None


def split(n_states: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows to fit to and rows to measure on, evenly spread, none in both."""
    rows = torch.linspace(0, n_states - 1, min(n_states, FIT_STATES + TEST_STATES)).long()
    measured = torch.arange(len(rows)) % (1 + FIT_STATES // TEST_STATES) == 0
    return rows[~measured], rows[measured]


def merge(
    architecture: Architecture,
    members: Sequence[Weights],
    weights: Sequence[float],
    fit_obs: torch.Tensor,
    test_obs: torch.Tensor,
) -> Merged:
    """Finds one ensemble in place of several.

    :param weights: by which the members enter c; the merged ensemble enters by their sum
    """
    total, n_fit = sum(weights), len(fit_obs)
    shares = [weight / total for weight in weights]
    obs, factors = torch.cat([fit_obs, test_obs]), architecture.factors
    mean = averaged(members, shares)
    # [E, n, H]
    hidden = _of_chunks(lambda o: architecture.hidden_of_many(mean, architecture.inputs_of_many(o)), obs, 1)
    wanted = sum(
        share * mean_centred(_of_chunks(lambda o, m=member: architecture.frozen_q_values(m, o), obs, -1), factors)
        for member, share in zip(members, shares, strict=True)
    )  # [n, A]
    assert isinstance(wanted, torch.Tensor)
    found = mean_centred(output(mean[OUTPUT_WEIGHT], mean[OUTPUT_BIAS], hidden), factors)
    # [n, E·H], whose sum is the mean of the critics
    features = hidden[:, :n_fit].movedim(0, 1).flatten(1).double().div_(len(hidden))
    slopes, intercept = ridge(features, (wanted - found)[:n_fit], RIDGE)
    mean[OUTPUT_WEIGHT] += slopes.t().unflatten(1, (len(hidden), -1)).movedim(1, 0).float()  # [E, A, H]
    mean[OUTPUT_BIAS] += intercept.float()
    refitted = mean_centred(output(mean[OUTPUT_WEIGHT], mean[OUTPUT_BIAS], hidden[:, n_fit:]), factors)
    return Merged(mean, total * (refitted - wanted[n_fit:]))


def averaged(members: Sequence[Weights], shares: Sequence[float]) -> dict[str, torch.Tensor]:
    """The weighted mean of ensembles, weight by weight."""
    return {
        name: torch.stack([share * member[name].double() for member, share in zip(members, shares, strict=True)])
        .sum(0)
        .float()
        for name in members[0]
    }


def ridge(features: torch.Tensor, targets: torch.Tensor, relative: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Least squares with a penalty on the slopes, relative to the features' mean square; none on the intercept.

    [n, H], [n, A] → [H, A], [A]
    """
    centre, middle = features.mean(0), targets.mean(0)
    gram, cross = features.new_zeros(len(centre), len(centre)), features.new_zeros(len(centre), len(middle))
    for rows in chunks(len(features), features.device):  # a copy of them all would be half of what merging takes
        x = features[rows] - centre
        gram.addmm_(x.t(), x)
        cross.addmm_(x.t(), targets[rows] - middle)
    gram.div_(len(features))
    mean_square = gram.diagonal().mean()
    # Features that are all dead have no scale: any penalty leaves their slopes at 0.
    gram.diagonal().add_(torch.where(mean_square > 0, relative * mean_square, 1.0))
    slopes = torch.linalg.solve(gram, cross.div_(len(features)))
    return slopes, middle - centre @ slopes


def span_norm(change: torch.Tensor, factors: Factors) -> float:
    """√ mean of span(δ)², parts summed, over the worst ``TAIL`` of the states. [n, A] → scalar

    The largest root mean square under any distribution of states whose density is at most 1/``TAIL`` relative to that
    of these states: visited states change while a merge lasts. No shift of the logits changes it.
    """
    squares = factors.total(lambda part: (part.amax(-1) - part.amin(-1)) ** 2, change)
    return math.sqrt(float(squares.topk(max(1, round(TAIL * len(squares)))).values.mean()))


def _of_chunks(function: Any, obs: torch.Tensor, dim: int) -> torch.Tensor:
    return torch.cat([function(obs[rows]) for rows in chunks(len(obs), obs.device)], dim)
