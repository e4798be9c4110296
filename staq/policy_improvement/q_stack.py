"""The last M frozen Q-ensembles, and the weighted sum of them that is the policy's logits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from staq.networks.architecture import OUTPUT_BIAS, OUTPUT_WEIGHT, Architecture, Weights, output
from staq.networks.chunks import block_size, chunk_size
from staq.policy_improvement.improvement import LogitsChange
from staq.policy_improvement.mirror_descent import centred, pushed_weights


@dataclass
class Entry:
    """One ensemble of the stack. It stands for one push, or once neighbours were merged for several."""

    first: int
    last: int
    """The pushes that it stands for, counted from 0 over all time."""
    weight: float
    """Its relative weight, or the sum of its members'."""
    slot: int
    """Where its weights lie: n entries fill the slots 0 to n − 1, in any order."""

    @property
    def n_pushes(self) -> int:
        return self.last - self.first + 1


def entries_of(
    n_pushed: int,
    relative_weights: Sequence[float],
    spans: Sequence[Sequence[int]] | None = None,
    slots: Sequence[int] | None = None,
) -> list[Entry]:
    """The entries that ``QStack.description`` describes; its parameters are those of ``QStack.restore``."""
    n = len(relative_weights)
    spans = [[push, push] for push in range(n_pushed - n, n_pushed)] if spans is None else spans
    slots = range(n) if slots is None else slots
    if sorted(slots) != list(range(n)):
        raise ValueError(f"The {n} networks of a saved policy lie in the slots {slots}: each needs one of its own.")
    if len(spans) != n or any(len(span) != 2 for span in spans):
        raise ValueError(
            f"The {n} networks of a saved policy have the spans {spans}: each needs a first and a last push."
        )
    places = zip(spans, relative_weights, slots, strict=True)
    return [Entry(first, last, weight, slot) for (first, last), weight, slot in places]


class QStack(nn.Module):
    """At most ``memory_size`` ensembles (or any number, without a limit) in preallocated blocks.

    ``push`` copies one ensemble into a slot, once there are M that of the oldest, and touches no other network's
    weights. Nothing here receives a gradient. ``state_dict`` holds the
    filled slots only, whatever their number: tensors, and of an empty stack none.
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
        self.entries: list[Entry] = []  # oldest first
        self._folded: tuple[torch.Tensor, list[tuple[Weights, torch.Tensor]]] | None = None
        self.prefactor = 1.0
        self.blocks: list[dict[str, torch.Tensor]] = []
        while self.memory_size is not None and len(self.blocks) * self.block_size < self.memory_size:
            self._append_block(min(self.block_size, self.memory_size - len(self.blocks) * self.block_size))

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def relative_weights(self) -> list[float]:
        """Of every entry, oldest first."""
        return [entry.weight for entry in self.entries]

    @torch.no_grad()
    def push(self, weights: Weights, beta: float, new_weight: float = 1.0) -> LogitsChange:
        """Freezes a copy of an ensemble's weights [E, ...] on top; the oldest goes once there are M.

        → what this does to the accumulated logits: c ← β c + w q_new − w' q_oldest
        """
        decayed, deleted = pushed_weights(self.relative_weights, beta, new_weight, self.memory_size)
        networks: list[tuple[Weights, float]] = [(weights, new_weight)]
        slot = len(self)
        if deleted is not None:
            leaving = self.entries.pop(0)
            slot = leaving.slot
            # A copy, since the new one takes its slot.
            networks.append(({name: w.clone() for name, w in self.ensemble(leaving).items()}, -deleted))
        self.entries.append(Entry(self.n_pushed, self.n_pushed, new_weight, slot))
        for entry, weight in zip(self.entries, decayed, strict=True):
            entry.weight = weight
        self.n_pushed += 1
        self._store(self.entries[-1], weights)
        self._folded = None
        return LogitsChange(beta, networks)

    @torch.no_grad()
    def merge(self, start: int, stop: int, weights: Weights) -> None:
        """Puts one ensemble [E, ...] in the place of the entries from ``start`` to before ``stop``."""
        members = self.entries[start:stop]
        total = sum(member.weight for member in members)
        merged = Entry(members[0].first, members[-1].last, total, members[0].slot)
        self._store(merged, weights)
        self.entries[start:stop] = [merged]
        # The slots above take the empty ones, the highest first so that none of them moves twice.
        for empty in sorted((member.slot for member in members[1:]), reverse=True):
            above = max(self.entries, key=lambda entry: entry.slot)
            if above.slot > empty:
                moved, above.slot = self.ensemble(above), empty
                self._store(above, moved)
        self._folded = None

    def ensemble(self, entry: Entry) -> dict[str, torch.Tensor]:
        """An entry's weights, as views [E, ...]."""
        start = (entry.slot % self.block_size) * self.n_critics
        block = self.blocks[entry.slot // self.block_size]
        return {name: w[start : start + self.n_critics] for name, w in block.items()}

    def _store(self, entry: Entry, weights: Weights) -> None:
        if entry.slot == len(self.blocks) * self.block_size:
            self._append_block(self.block_size)
        for name, slot in self.ensemble(entry).items():
            slot.copy_(weights[name])

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
        return torch.stack([self.architecture.q_values(self.ensemble(entry), obs) for entry in self.entries])

    def _accumulated_chunk(self, obs: torch.Tensor, newest: list[torch.Tensor] | None = None) -> torch.Tensor:
        """:param newest: is given q of the newest ensemble"""
        bias, layers = self.folded()
        total = bias.repeat(len(obs), 1)  # [B, A]
        inputs = self.architecture.inputs_of_many(obs)
        block, place = divmod(self.entries[-1].slot if self.entries else 0, self.block_size)
        own = slice(place * self.n_critics, (place + 1) * self.n_critics)
        for i, (filled, folded) in enumerate(layers):
            hidden = self.architecture.hidden_of_many(filled, inputs)  # [N, B, H]
            total += (folded @ hidden.transpose(1, 2)).sum(0).t()
            if newest is not None and i == block:
                newest.append(output(filled[OUTPUT_WEIGHT][own], filled[OUTPUT_BIAS][own], hidden[own]).mean(0).t())
            del hidden  # or the next block's would lie beside it
        return total

    def _append_block(self, n_ensembles: int) -> None:
        self.blocks.append(
            {
                name: torch.empty(n_ensembles * self.n_critics, *shape, device=self.device)
                for name, shape in self.shapes.items()
            }
        )

    @torch.no_grad()
    def folded(self) -> tuple[torch.Tensor, list[tuple[Weights, torch.Tensor]]]:
        """Output layers with weights and centring multiplied into them, whose results then need only be summed.

        Made when they are first asked for after a change: an audit pushes a thousand networks between two looks.

        → their biases' sum [A]; of each block what is filled, and [N, A, H]
        """
        if self._folded is not None:
            return self._folded
        total = torch.zeros(self.architecture.n_actions, dtype=torch.float64, device=self.device)
        layers: list[tuple[Weights, torch.Tensor]] = []
        factors, centred_rows = self.architecture.factors, partial(centred, dim=1)
        by_slot = sorted(self.entries, key=lambda entry: entry.slot)
        shares = torch.tensor([entry.weight / self.n_critics for entry in by_slot], dtype=torch.float64)
        shares = shares.repeat_interleave(self.n_critics).to(self.device)
        in_blocks = shares.split(self.block_size * self.n_critics) if len(self) else ()
        for block, share in zip(self.blocks, in_blocks, strict=False):
            filled = {name: w[: len(share)] for name, w in block.items()}
            folded = factors.each(centred_rows, filled[OUTPUT_WEIGHT].double(), dim=1) * share[:, None, None]
            layers.append((filled, folded.float()))
            bias = factors.each(centred, filled[OUTPUT_BIAS].double())
            total += (bias * share[:, None]).sum(0)
        self._folded = total, layers
        return self._folded

    def description(self) -> dict[str, Any]:
        """Everything but the networks, as plain data."""
        return {
            "n_pushed": self.n_pushed,
            "relative_weights": self.relative_weights,
            "prefactor": self.prefactor,
            "spans": [[entry.first, entry.last] for entry in self.entries],
            "slots": [entry.slot for entry in self.entries],
        }

    def state(self) -> dict[str, Any]:
        """The description and the networks [n · E, ...], oldest first."""
        retained = [self.ensemble(entry) for entry in self.entries]
        networks = {name: torch.cat([e[name] for e in retained]) for name in self.shapes} if retained else {}
        return {**self.description(), "networks": networks}

    def load_state(self, state: dict[str, Any]) -> None:
        """Takes over ``state()``, whose parts are checked against one another first."""
        n, shapes = len(state["relative_weights"]), {name: tuple(w.shape) for name, w in state["networks"].items()}
        expected = {name: (n * self.n_critics, *shape) for name, shape in self.shapes.items()} if n else {}
        if shapes != expected:
            name = min(name for name in shapes.keys() | expected.keys() if shapes.get(name) != expected.get(name))
            raise ValueError(
                f"The saved policy has {n} relative_weights, for which {name} of its networks is to be "
                f"{expected.get(name, 'left out')}, not {shapes.get(name, 'left out')}."
            )
        if not all(map(math.isfinite, (*state["relative_weights"], state["prefactor"]))):
            raise ValueError(
                "The saved policy has numbers that are not finite: "
                f"relative_weights={state['relative_weights']}, prefactor={state['prefactor']}."
            )
        description = dict(state)
        per_ensemble = {name: w.split(self.n_critics) for name, w in description.pop("networks").items()}
        ensembles = (
            {name: each[i] for name, each in per_ensemble.items()} for i in range(len(state["relative_weights"]))
        )
        self.restore(**description, ensembles=ensembles)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        if not len(self):
            return
        state = self.state()
        for name, networks in state.pop("networks").items():
            destination[f"{prefix}networks.{name}"] = networks
        for name, numbers in state.items():  # float64, in which pushes are exact
            destination[prefix + name] = torch.tensor(numbers, dtype=torch.float64, device=self.device)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, _: Any, strict: bool, missing_keys: list[str], *rest: Any
    ) -> None:
        own = {name.removeprefix(prefix): w for name, w in state_dict.items() if name.startswith(prefix)}
        if "_extra_state" in own:  # of files that were pickled
            self.load_state(own["_extra_state"])
            return
        if not own:
            if strict:
                self.clear()
            return
        needed = [*self.description(), *(f"networks.{name}" for name in self.shapes)]
        missing = [prefix + name for name in needed if name not in own]
        if missing:
            missing_keys.extend(missing)
            return
        networks = {name: own[f"networks.{name}"] for name in self.shapes}
        whole = {name: own[name].long().tolist() for name in ("n_pushed", "spans", "slots")}
        exact = {name: own[name].tolist() for name in ("relative_weights", "prefactor")}
        self.load_state({**whole, **exact, "networks": networks})

    @torch.no_grad()
    def restore(
        self,
        n_pushed: int,
        relative_weights: Sequence[float],
        prefactor: float,
        ensembles: Iterable[Weights],
        spans: Sequence[Sequence[int]] | None = None,
        slots: Sequence[int] | None = None,
    ) -> None:
        """Takes over a saved stack, its entries oldest first.

        :param spans: the first and last push of each; by default every entry is one push
        :param slots: where each lay, on which the last bits of a sum depend; by default one after the other
        """
        n = len(relative_weights)
        if self.memory_size is not None and n > self.memory_size:
            raise ValueError(
                f"The saved policy holds {n} networks but memory_size={self.memory_size}: "
                f"load it with memory_size={n} or more."
            )
        self.clear()
        self.n_pushed, self.prefactor = n_pushed, prefactor
        self.entries = entries_of(n_pushed, relative_weights, spans, slots)
        while len(self.blocks) * self.block_size < n:
            self._append_block(self.block_size)
        for entry, weights in zip(self.entries, ensembles, strict=True):
            self._store(entry, weights)
        self._folded = None

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> QStack:
        """Follows ``.to(device)``: the blocks are no registered buffers, as their number varies with the device too."""
        super()._apply(fn, recurse)
        state = self.state()
        self.device = fn(torch.empty(0, device=self.device)).device
        self.block_size = block_size(self.device)
        self.load_state(state)
        return self
