"""Do evaluation errors average out? (App. "Averaging of evaluation error")

Value iteration of mirror descent on a gridded environment: q_k is a network, warm-started and regressed for 5,000
gradient steps on the exact target T^k q_{k−1}; the policy update is exact on the grid. The error is known exactly, as
q_k − T^k q_{k−1} ("bellman") and as q_k − Q^k ("value"). The figure is the paper's: the norm of the weighted average
of the last M errors minus the norm of the last, over iterations. Below zero, averaging helps.

All seeds of an environment are trained as one batch of networks.
"""

from __future__ import annotations

import csv
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from scipy import stats

from staq.networks.conv_mlp import ConvMlp
from staq.networks.ensemble import QEnsemble
from staq.networks.gradients import ClosedForm
from staq.storage import atomic_files
from staq.tabular.grids import GridMDP, mountain_car, pendulum
from staq.tabular.mirror_descent import Settings
from staq.tabular.operators import bellman, policy_of, q_of_policy

ENVIRONMENTS: dict[str, Callable[[], GridMDP]] = {"pendulum": pendulum, "mountaincar": mountain_car}
SETTINGS = Settings(entropy_weight=0.03, kl_weight=1.0, evaluation="value")
"""τ and η of the paper's study."""
PAPER_SEEDS, FULL_ITERATIONS = 50, 300
MEMORIES = (5, 10, 20, 50)
SMOOTHING = 20
# The paper names none of these; they are the usual choices for so small a problem.
NET_ARCH, LEARNING_RATE, BATCH_SIZE, GRADIENT_STEPS = (128, 128), 1e-3, 64, 5000


@dataclass(frozen=True)
class Row:
    """One error of one seed after one iteration."""

    seed: int
    iteration: int
    error: str
    last_norm: float
    """‖ε_k‖"""
    differences: dict[int, float]
    """By M, of which so many errors exist: ‖(1−β)/(1−β^M) Σ_{i<M} β^i ε_{k−i}‖ − ‖ε_k‖"""


def scaled_to(budget: float) -> tuple[int, int]:
    """Seeds and iterations at a fraction of the full study, which is 50 seeds (the paper's) and 300 iterations."""
    if not 0 < budget <= 1:
        raise ValueError(f"budget={budget}: it must be above 0 and at most 1.")
    scale = math.sqrt(budget)
    return max(2, round(PAPER_SEEDS * scale)), max(max(MEMORIES) + SMOOTHING, round(FULL_ITERATIONS * scale))


class Study:
    """The errors of every seed and iteration, from the first at which there are as many as the smallest M."""

    def __init__(self, grid: GridMDP, n_seeds: int, gradient_steps: int = GRADIENT_STEPS) -> None:
        self.mdp, self.gradient_steps = grid.mdp, gradient_steps
        self.networks = FittedQ(grid, n_seeds)
        self.q, self.logits = np.zeros((2, n_seeds, *grid.mdp.reward.shape))
        self.iteration = 0
        self.rows: list[Row] = []
        self._newest_last: dict[str, list[np.ndarray]] = {"bellman": [], "value": []}

    def iterate(self) -> None:
        """One iteration of mirror descent, and its errors."""
        tau = SETTINGS.entropy_weight
        self.logits = SETTINGS.beta * self.logits + SETTINGS.alpha * self.q
        policies = [policy_of(logits) for logits in self.logits]
        targets = np.stack([bellman(self.mdp, log_pi, q, tau) for log_pi, q in zip(policies, self.q, strict=True)])
        self.q = self.networks.fit(targets, self.gradient_steps)
        exact = np.stack([q_of_policy(self.mdp, log_pi, tau) for log_pi in policies])
        self.iteration += 1
        for name, errors in (("bellman", self.q - targets), ("value", self.q - exact)):
            history = self._newest_last[name]
            history.append(errors)
            self.rows += _rows(name, self.iteration, history)
            del history[: -max(MEMORIES)]

    def save(self, path: Path) -> None:
        """All that ``restore`` needs to go on with the same numbers."""
        rows = [tuple(vars(row).values()) for row in self.rows]
        own = {name: getattr(self, name) for name in self._PLAIN}
        atomic_files.write_atomically(path, own | {"rows": rows, "networks": self.networks.state()})

    def restore(self, path: Path) -> None:
        """Where ``save`` was."""
        state = atomic_files.read(path)
        if state["q"].shape != self.q.shape:
            raise ValueError(
                f"{path} is a study of {len(state['q'])} seeds, not {len(self.q)}: continue it at its own budget, "
                "or delete it to begin anew."
            )
        for name in self._PLAIN:
            setattr(self, name, state[name])
        self.rows = [Row(*row) for row in state["rows"]]
        self.networks.restore(state["networks"])

    _PLAIN = ("q", "logits", "iteration", "_newest_last")


class FittedQ:
    """One network per seed, each with its own weights and its own batches, trained side by side."""

    def __init__(self, grid: GridMDP, n_seeds: int) -> None:
        torch.manual_seed(0)
        self.generator = torch.Generator().manual_seed(0)
        self.observations = torch.as_tensor(grid.observations, dtype=torch.float32)  # [S, features]
        n_features, n_actions = grid.observations.shape[1], grid.mdp.n_actions
        self.networks = QEnsemble(ConvMlp(spaces.Box(-2, 2, (n_features,)), n_actions, NET_ARCH), n_seeds)
        self.gradient = ClosedForm(self.networks, BATCH_SIZE, shared=False)
        self.optimizer = torch.optim.Adam(self.networks.parameters(), lr=LEARNING_RATE, fused=True)

    def state(self) -> dict[str, Any]:
        """Weights, optimizer and batches to come."""
        return {
            "weights": self.networks.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "generator": self.generator.get_state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """As ``state`` found it."""
        self.networks.load_state_dict(state["weights"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.generator.set_state(state["generator"])

    def fit(self, targets: np.ndarray, gradient_steps: int) -> np.ndarray:
        """Regresses the networks on targets [seeds, S, A] and returns what they say then, in the same shape."""
        n_seeds, n_states, n_actions = targets.shape
        wanted = torch.as_tensor(targets, dtype=torch.float32).transpose(1, 2)  # [seeds, A, S]
        for _ in range(gradient_steps):
            batch = torch.randint(n_states, (n_seeds, BATCH_SIZE), generator=self.generator)
            q = self.gradient.forward_inputs(self.observations[batch])  # [seeds, A, B]
            error = q - wanted.gather(2, batch[:, None].expand(-1, n_actions, -1))
            self.gradient.backward(error.mul_(2 / (n_actions * BATCH_SIZE)))  # of the mean square, for each network
            self.optimizer.step()
        with torch.no_grad():
            return self.networks(self.observations).transpose(1, 2).double().numpy()


def _rows(name: str, iteration: int, newest_last: list[np.ndarray]) -> list[Row]:
    beta = SETTINGS.beta
    last = np.abs(newest_last[-1]).max((1, 2))  # [seeds]
    rows = [Row(seed, iteration, name, round(float(norm), 5), {}) for seed, norm in enumerate(last)]
    for memory in MEMORIES:
        if len(newest_last) < memory:
            continue
        weights = (1 - beta) / (1 - beta**memory) * beta ** np.arange(memory)
        average = np.einsum("i,i...->...", weights, np.stack(newest_last[-memory:][::-1]))
        for row, difference in zip(rows, np.abs(average).max((1, 2)) - last, strict=True):
            row.differences[memory] = round(float(difference), 5)
    return [row for row in rows if row.differences]


def write(rows: list[Row], path: Path) -> None:
    """One line per row, with a column for each M."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["seed", "iteration", "error", "last_norm", *(f"M={memory}" for memory in MEMORIES)])
        for row in rows:
            differences = [row.differences.get(memory, "") for memory in MEMORIES]
            writer.writerow([row.seed, row.iteration, row.error, row.last_norm, *differences])


def read(path: Path) -> list[Row]:
    """What ``write`` wrote."""
    with path.open() as file:
        table = csv.reader(file)
        memories = [int(name.removeprefix("M=")) for name in next(table)[4:]]
        rows = []
        for seed, iteration, error, last, *cells in table:
            differences = {m: float(cell) for m, cell in zip(memories, cells, strict=True) if cell}
            rows.append(Row(int(seed), int(iteration), error, float(last), differences))
        return rows


def verdict(rows: list[Row]) -> list[str]:
    """The last tenth of the iterations, by kind of error and memory: is the difference below zero?"""
    window = max(row.iteration for row in rows) // 10 + 1
    lines = []
    for error, memory in itertools.product(("bellman", "value"), MEMORIES):
        mean, half = _mean_and_interval(_differences(rows, error, memory)[-window:])
        word = "averages out" if mean + half < 0 else "does not" if mean - half > 0 else "undecided"
        lines.append(f"{error:8} M={memory:<3} {mean:+.4f} ± {half:.4f} (95 %)  {word}")
    return lines


def draw(studies: dict[str, list[Row]], out: Path) -> None:
    """The paper's figure, for both kinds of error."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(2, len(studies), figsize=(5.5 * len(studies), 7), squeeze=False, layout="constrained")
    for (row, error), (column, (name, rows)) in itertools.product(
        enumerate(("bellman", "value")), enumerate(studies.items())
    ):
        axis = axes[row][column]
        _panel(axis, rows, error)
        kind = "q_k − T^k q_{k−1}" if error == "bellman" else "q_k − Q^k"
        seeds = len({r.seed for r in rows})
        axis.set(title=f"{name}, ε = {kind}, {seeds} seeds", xlabel="iteration", ylabel="‖average‖ − ‖last‖")
        if error == "value":  # from tens down to where its sign is the question
            axis.set_yscale("symlog", linthresh=0.01)
        axis.axhline(0, color="black", linewidth=1)
        axis.grid(alpha=0.3)
        axis.legend(frameon=False)
    figure.savefig(out, dpi=120)
    plt.close(figure)


def _panel(axis: Any, rows: list[Row], error: str) -> None:
    colours = ("#E69F00", "#009E73", "#0072B2", "#CC79A7")
    for memory, colour in zip(MEMORIES, colours, strict=False):
        differences = _differences(rows, error, memory)  # [iterations, seeds]
        last = memory + len(differences) - 1
        centres = range(memory + SMOOTHING - 1, last + 1)
        points = [_mean_and_interval(differences[i : i + SMOOTHING]) for i in range(len(centres))]
        mean, half = np.array(points).T
        axis.plot(centres, mean, color=colour, label=f"M = {memory}")
        axis.fill_between(centres, mean - half, mean + half, color=colour, alpha=0.2, linewidth=0)


def _differences(rows: list[Row], error: str, memory: int) -> np.ndarray:
    """[iterations from M on, seeds]"""
    chosen = [row for row in rows if row.error == error and memory in row.differences]
    table = np.full((max(r.iteration for r in chosen) - memory + 1, max(r.seed for r in chosen) + 1), np.nan)
    for row in chosen:
        table[row.iteration - memory, row.seed] = row.differences[memory]
    return table


def _mean_and_interval(window: np.ndarray) -> tuple[float, float]:
    """Over seeds, of each seed's mean over a window of iterations. [iterations, seeds]"""
    means = window.mean(0)
    half = stats.t.ppf(0.975, len(means) - 1) * means.std(ddof=1) / math.sqrt(len(means))
    return float(means.mean()), float(half)
