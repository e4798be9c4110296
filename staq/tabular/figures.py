"""The pictures of ``staq theory plot``: what the bounds say, and what runs do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

from staq.tabular import bounds
from staq.tabular.mdp import dirichlet
from staq.tabular.mirror_descent import Settings, run
from staq.tabular.operators import optimal_q

matplotlib.use("Agg")
from matplotlib import pyplot as plt

# Okabe and Ito's colours, which stay apart for the colour-blind and in print.
BLUE, ORANGE, GREEN, PURPLE, YELLOW, SKY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"
SEEDS = 20


def draw_all(folder: Path) -> list[Path]:
    """Every picture into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    pictures: dict[str, Callable[[Any], None]] = {
        "bound": stacked_bound,
        "trade-off": averaging_trade_off,
        "update": inexact_updates,
        "memory": convergence_by_memory,
        "rate": rate_by_memory,
        "threshold": threshold_by_actions,
    }
    paths = []
    for name, draw in pictures.items():
        figure, axis = plt.subplots(figsize=(6, 4), layout="constrained")
        draw(axis)
        axis.grid(alpha=0.3)
        axis.legend(frameon=False, fontsize=9, loc="center right" if name == "rate" else "best")
        paths.append(folder / f"{name}.png")
        figure.savefig(paths[-1], dpi=130)
        plt.close(figure)
    return paths


def stacked_bound(axis: Any) -> None:
    """Error against iteration, with the terms of Theorem 4.4 stacked under it."""
    rng = np.random.default_rng(0)
    mdp, tau = dirichlet(20, 4, 0.9, rng), 0.05
    history = run(mdp, Settings(tau, 1.0), 150, lambda k: 0.1 * rng.normal(size=mdp.reward.shape))
    sides = bounds.theorem_4_4(history, optimal_q(mdp, tau), repaired=True)
    steps = np.arange(1, len(sides) + 1)
    terms = {name: values for name in sides[0].terms if any(values := [side.terms[name] for side in sides])}
    labels = [f"bound: {name}" for name in terms]
    axis.stackplot(steps, terms.values(), labels=labels, colors=[SKY, YELLOW, PURPLE, GREEN], alpha=0.7)
    axis.plot(steps, [side.left for side in sides], color="black", label="‖Q* − τξ‖")
    axis.set(
        title="Theorem 4.4, repaired, term by term", xlabel="iteration", ylabel="error", yscale="log", ylim=(1e-2, None)
    )


def averaging_trade_off(axis: Any) -> None:
    """The error that is left, and the time to get there, against η: more averaging is slower."""
    tau, etas, iterations = 0.05, np.logspace(-2, 0.5, 12), 500
    floors, times = [], []
    for eta in etas:
        left, reached = zip(*(_floor_and_time(seed, tau, float(eta), iterations) for seed in range(SEEDS)), strict=True)
        floors.append(left)
        times.append(reached)
    values = np.array(floors)  # [η, seeds]
    half = 2.093 * values.std(1, ddof=1) / np.sqrt(SEEDS)  # Student's t for 20 seeds
    axis.plot(etas, values.mean(1), color=BLUE, marker=".", label=f"error floor, mean of {SEEDS} MDPs, 95 %")
    axis.fill_between(etas, values.mean(1) - half, values.mean(1) + half, color=BLUE, alpha=0.2, linewidth=0)
    axis.plot([], [], color=ORANGE, marker=".", label="iterations until within twice the floor")
    other = axis.twinx()
    other.plot(etas, np.mean(times, axis=1), color=ORANGE, marker=".")
    other.set(ylabel="iterations", yscale="log")
    axis.set(title="Averaging against speed", xlabel="KL weight η", ylabel="‖Q* − τξ‖", xscale="log", yscale="log")


def _floor_and_time(seed: int, tau: float, eta: float, iterations: int) -> tuple[float, int]:
    rng = np.random.default_rng(seed)
    mdp = dirichlet(10, 3, 0.9, rng)
    history = run(mdp, Settings(tau, eta), iterations, lambda k: 0.1 * rng.normal(size=mdp.reward.shape))
    optimal = optimal_q(mdp, tau)
    distances = np.array([bounds.distance(history, optimal, k) for k in range(iterations + 1)])
    floor = float(distances[-100:].mean())
    return floor, int(np.argmax(distances <= 2 * floor))


def inexact_updates(axis: Any) -> None:
    """Exact evaluation, policy updates with an error of their own: the floor of Sec. 4.3, which StaQ does not have."""
    mdp, tau, eta, iterations = dirichlet(10, 3, 0.9, np.random.default_rng(2)), 0.05, 0.2, 200
    optimal = optimal_q(mdp, tau)
    for scale, colour in ((1.0, PURPLE), (0.1, YELLOW), (0.01, BLUE), (0.0, "black")):
        rng = np.random.default_rng(3)
        updates = [scale * rng.uniform(-1, 1, size=mdp.reward.shape) for _ in range(iterations)]
        history = run(mdp, Settings(tau, eta), iterations, update_errors=updates.__getitem__)
        distances = [max(bounds.distance(history, optimal, k), 1e-12) for k in range(iterations + 1)]
        label = f"logits off by up to {scale:g}" if scale else "exact updates, as StaQ's"
        axis.plot(distances, color=colour, label=label)
    axis.set(title="Inexact policy updates", xlabel="iteration", ylabel="‖Q* − τξ‖", yscale="log")


def convergence_by_memory(axis: Any) -> None:
    """Without errors: memories far below, below, at and above the theorem's threshold."""
    gamma, beta, tau = 0.6, 0.8, 0.3
    threshold = bounds.minimum_memory(gamma, beta)
    mdp = dirichlet(10, 3, gamma, np.random.default_rng(1))
    optimal = optimal_q(mdp, tau)
    kinds = [(1, PURPLE), (threshold // 2, YELLOW), (threshold, BLUE), (2 * threshold, GREEN), (None, "black")]
    for memory, colour in kinds:
        history = run(mdp, Settings(tau, tau * beta / (1 - beta), "policy", memory), 120)
        distances = [max(bounds.distance(history, optimal, k), 1e-15) for k in range(121)]
        axis.plot(distances, color=colour, label="no limit" if memory is None else f"M = {memory}")
    axis.set(
        title=f"Without errors; the theorem asks for M ≥ {threshold}",
        xlabel="iteration",
        ylabel="‖Q* − τξ‖",
        yscale="log",
    )


def rate_by_memory(axis: Any) -> None:
    """d_0 against M: it tends to the larger of γ and √β, not to γ."""
    for gamma, beta, colour in ((0.5, 0.99, BLUE), (0.9, 0.7, ORANGE)):
        memories = np.unique(np.geomspace(bounds.minimum_memory(gamma, beta), 10**5, 60).astype(int))
        rates = [bounds.convergence_rate(gamma, beta, int(m)) for m in memories]
        axis.plot(memories, rates, color=colour, label=f"d₀ for γ = {gamma}, β = {beta}")
        axis.axhline(gamma, color=colour, linestyle=":", label=f"γ = {gamma}")
        axis.axhline(np.sqrt(beta), color=colour, linestyle="--", label=f"√β = {np.sqrt(beta):.3f}")
    axis.set(title="Theorem 5.1's rate", xlabel="memory M", ylabel="d₀", xscale="log")


def threshold_by_actions(axis: Any) -> None:
    """The memory that the theorem asks for at the paper's settings, against the paper's M = 300."""
    actions = np.arange(2, 7)
    for scaled, colour in ((2.0, GREEN), (0.4, BLUE)):
        taus = scaled / np.log(actions)
        needed = [bounds.memory_threshold(0.99, 20 / (20 + tau)) for tau in taus]
        axis.plot(actions, needed, color=colour, marker="o", label=f"needed at scaled entropy weight {scaled}")
    axis.axhline(300, color="black", linestyle="--", label="the paper's M = 300")
    axis.set(title="γ = 0.99, η = 20", xlabel="number of actions", ylabel="memory M", ylim=(0, None))
    axis.set_xticks(actions)
