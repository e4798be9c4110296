"""The last M frozen Q-ensembles, and the weighted sum of them that is the policy's logits."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import nn

from staq.networks.architecture import OUTPUT_BIAS, OUTPUT_WEIGHT, Architecture, Weights, output
from staq.networks.chunks import block_size, chunk_size
from staq.policy_improvement.improvement import LogitsChange
from staq.policy_improvement.mirror_descent import centred, pushed_weights


class QStack(nn.Module):
    """A ring of at most ``memory_size`` ensembles (or any number, without a limit) in preallocated blocks.

    ``push`` copies one ensemble into the oldest slot and touches no other network's weights. Nothing here
    receives a gradient. ``state_dict`` holds the filled slots only, whatever their number.
    """

    def __init__(
        self,
        architecture: Architecture,
        n_critics: int,
        memory_size: int | None,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__()
        self.architecture = architecture
        self.n_critics = n_critics
        self.memory_size = memory_size
        self.device = torch.device(device)
        self.block_size = block_size(self.device)
        self.shapes = {name: w.shape for name, w in architecture.initial_weights().items()}
        self.clear()

    def clear(self) -> None:
        """Forgets every network: the logits are zero and the policy is uniform."""
        self.n_pushed = 0
        self.relative_weights: list[float] = []  # oldest first
        self.prefactor = 1.0
        self.blocks: list[dict[str, torch.Tensor]] = []
        while self.memory_size is not None and len(self.blocks) * self.block_size < self.memory_size:
            self._append_block(min(self.block_size, self.memory_size - len(self.blocks) * self.block_size))
        self._fold()

    def __len__(self) -> int:
        return len(self.relative_weights)

    @torch.no_grad()
    def push(self, weights: Weights, beta: float, new_weight: float = 1.0) -> LogitsChange:
        """Freezes a copy of an ensemble's weights [E, ...] on top; the oldest goes once there are M.

        → what this does to the accumulated logits: c ← β c + w q_new − w' q_oldest
        """
        leaving = self.oldest
        self.relative_weights, deleted = pushed_weights(self.relative_weights, beta, new_weight, self.memory_size)
        networks: list[tuple[Weights, float]] = [(weights, new_weight)]
        if leaving is not None and deleted is not None:  # a copy, since the new one takes its slot
            networks.append(({name: w.clone() for name, w in leaving.items()}, -deleted))
        if self.memory_size is None and self.n_pushed == len(self.blocks) * self.block_size:
            self._append_block(self.block_size)
        for name, slot in self.ensemble(self.n_pushed).items():
            slot.copy_(weights[name])
        self.n_pushed += 1
        self._fold()
        return LogitsChange(beta, networks)

    def ensemble(self, push: int) -> dict[str, torch.Tensor]:
        """The slot of the given push, counted from 0 over all time, as views [E, ...]."""
        slot = self._slot(push)
        start = (slot % self.block_size) * self.n_critics
        block = self.blocks[slot // self.block_size]
        return {name: w[start : start + self.n_critics] for name, w in block.items()}

    def _slot(self, push: int) -> int:
        return push if self.memory_size is None else push % self.memory_size

    @property
    def retained_pushes(self) -> range:
        """The pushes that are still in memory, oldest first."""
        return range(self.n_pushed - len(self), self.n_pushed)

    @property
    def oldest(self) -> dict[str, torch.Tensor] | None:
        """The ensemble that the next push deletes, if it deletes one."""
        return self.ensemble(self.retained_pushes[0]) if len(self) == self.memory_size else None

    @torch.no_grad()
    def accumulated(self, obs: torch.Tensor) -> torch.Tensor:
        """c(s) = Σ_i w_i q_i(s), each q_i the mean of its ensemble, centred over actions. → float64 [B, A]"""
        return torch.cat([self._accumulated_chunk(chunk) for chunk in obs.split(chunk_size(self.device))])

    @torch.no_grad()
    def accumulated_and_newest_q(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """c(s), and q of the newest ensemble, whose hidden layers are computed for it anyway. → [B, A] each"""
        newest: list[torch.Tensor] = []
        chunks = [self._accumulated_chunk(chunk, newest) for chunk in obs.split(chunk_size(self.device))]
        return torch.cat(chunks), torch.cat(newest)

    def logits(self, accumulated: torch.Tensor) -> torch.Tensor:
        """ξ = prefactor · c (Eq. 2)."""
        return self.prefactor * accumulated

    @torch.no_grad()
    def q_values(self, obs: torch.Tensor) -> torch.Tensor:
        """q of every frozen network, oldest first. → [n, E, A, B]"""
        if not len(self):
            return torch.empty(0, self.n_critics, self.architecture.n_actions, len(obs), device=self.device)
        return torch.stack([self.architecture.q_values(self.ensemble(push), obs) for push in self.retained_pushes])

    def _accumulated_chunk(self, obs: torch.Tensor, newest: list[torch.Tensor] | None = None) -> torch.Tensor:
        """:param newest: is given q of the newest ensemble"""
        total = self._folded_bias.repeat(len(obs), 1)  # [B, A]
        inputs = self.architecture.inputs_of_many(obs)
        block, place = divmod(self._slot(self.n_pushed - 1), self.block_size)
        own = slice(place * self.n_critics, (place + 1) * self.n_critics)
        for i, (filled, folded) in enumerate(self._folded):
            hidden = self.architecture.hidden_of_many(filled, inputs)  # [N, B, H]
            total += (folded @ hidden.transpose(1, 2)).sum(0).t()
            if newest is not None and i == block:
                newest.append(output(filled[OUTPUT_WEIGHT][own], filled[OUTPUT_BIAS][own], hidden[own]).mean(0).t())
        return total

    def _append_block(self, n_ensembles: int) -> None:
        self.blocks.append(
            {
                name: torch.empty(n_ensembles * self.n_critics, *shape, device=self.device)
                for name, shape in self.shapes.items()
            }
        )

    @torch.no_grad()
    def _fold(self) -> None:
        """Multiplies weights and centring into the output layers, whose results then need only be summed."""
        self._folded_bias = torch.zeros(self.architecture.n_actions, dtype=torch.float64, device=self.device)
        self._folded: list[tuple[Weights, torch.Tensor]] = []  # of each block what is filled, and [N, A, H]
        if not len(self):
            return
        factors, centred_rows = self.architecture.factors, partial(centred, dim=1)
        by_slot = sorted(zip(map(self._slot, self.retained_pushes), self.relative_weights, strict=True))
        shares = torch.tensor([w / self.n_critics for _, w in by_slot], dtype=torch.float64)
        shares = shares.repeat_interleave(self.n_critics).to(self.device)
        for block, share in zip(self.blocks, shares.split(self.block_size * self.n_critics), strict=False):
            filled = {name: w[: len(share)] for name, w in block.items()}
            folded = factors.each(centred_rows, filled[OUTPUT_WEIGHT].double(), dim=1) * share[:, None, None]
            self._folded.append((filled, folded.float()))
            bias = factors.each(centred, filled[OUTPUT_BIAS].double())
            self._folded_bias += (bias * share[:, None]).sum(0)

    def get_extra_state(self) -> dict[str, Any]:
        retained = [self.ensemble(push) for push in self.retained_pushes]
        networks = {name: torch.cat([e[name] for e in retained]) for name in self.shapes} if retained else {}
        return {
            "n_pushed": self.n_pushed,
            "relative_weights": list(self.relative_weights),
            "prefactor": self.prefactor,
            "networks": networks,
        }

    def set_extra_state(self, state: dict[str, Any]) -> None:
        per_ensemble = {name: w.split(self.n_critics) for name, w in state["networks"].items()}
        ensembles = (
            {name: each[i] for name, each in per_ensemble.items()} for i in range(len(state["relative_weights"]))
        )
        self.restore(state["n_pushed"], state["relative_weights"], state["prefactor"], ensembles)

    @torch.no_grad()
    def restore(
        self, n_pushed: int, relative_weights: list[float], prefactor: float, ensembles: Iterable[Weights]
    ) -> None:
        """Takes over a saved stack: its count of pushes, its retained ensembles and their weights, oldest first."""
        n_retained = len(relative_weights)
        if self.memory_size is not None and n_retained > self.memory_size:
            raise ValueError(
                f"The saved policy holds {n_retained} networks but memory_size={self.memory_size}: "
                f"load it with memory_size={n_retained} or more."
            )
        self.clear()
        # A stack with room left was never full, unless its limit was raised since: then slots start anew.
        self.n_pushed = n_pushed if n_retained == self.memory_size else n_retained
        self.relative_weights = list(relative_weights)
        self.prefactor = prefactor
        while self.memory_size is None and len(self.blocks) * self.block_size < n_retained:
            self._append_block(self.block_size)
        for push, weights in zip(self.retained_pushes, ensembles, strict=True):
            for name, slot in self.ensemble(push).items():
                slot.copy_(weights[name])
        self._fold()

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> QStack:
        """Follows ``.to(device)``: the blocks are no registered buffers, as their number varies with the device too."""
        super()._apply(fn, recurse)
        state = self.get_extra_state()
        self.device = fn(torch.empty(0, device=self.device)).device
        self.block_size = block_size(self.device)
        self.set_extra_state(state)
        return self
