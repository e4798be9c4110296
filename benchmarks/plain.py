"""The paper's scheme, written plainly: ``examples/staq_plain.py``, timed deep in a run.

    python -m benchmarks.plain MinAtar/SpaceInvaders-v1 [--layers vmap | batched]

One environment; the whole stack evaluated for every action, and for every replayed state in every iteration;
targets for every draw; gradients by autograd. Each phase is timed on a sample and they are added up by the
schedule: 5,000 environment steps, as many gradient steps, then the replay once. ``--layers`` says how the stack is
evaluated: as the example's ``list``, by ``vmap``, PyTorch's own way to stack modules, or by the library's ``batched``
layers, which shows how much of the difference is the scheme and how much the layers.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from examples.staq_plain import Settings, accumulated_logits, evaluate, make_network
from staq.envs.make import make_env
from staq.experiments.timing import BATCH_SIZE, BUFFER_SIZE, INTERVAL, N_CRITICS, network, peak_memory
from staq.networks.ensemble import QEnsemble

Stack = Callable[[torch.Tensor], torch.Tensor]
"""Observations → the weighted sum of all networks. [B, ...] → [B, A]"""


def make_stack(env_id: str, memory_size: int, layers: str) -> Stack:
    """M ensembles of untrained networks."""
    architecture, env = network(env_id), make_env(env_id)
    n_actions, width = architecture.n_actions, architecture.hidden_size
    weights = [0.99**age for age in reversed(range(memory_size))]
    share = torch.tensor(weights).repeat_interleave(N_CRITICS)[:, None, None] / N_CRITICS
    if layers == "batched":
        ensemble = QEnsemble(architecture, memory_size * N_CRITICS)
        return torch.no_grad()(lambda obs: (share * ensemble(obs).mT).sum(0))
    networks = [make_network(env.observation_space, n_actions, width) for _ in range(memory_size * N_CRITICS)]
    if layers == "list":
        ensembles = [networks[i : i + N_CRITICS] for i in range(0, len(networks), N_CRITICS)]
        return lambda obs: accumulated_logits(ensembles, weights, n_actions, obs)
    stacked, _ = torch.func.stack_module_state(networks)
    template = networks[0].to("meta")

    @torch.no_grad()
    def by_vmap(obs: torch.Tensor) -> torch.Tensor:
        q = torch.vmap(lambda one: torch.func.functional_call(template, one, (obs,)))(stacked)  # [N, B, A]
        return (share * q).sum(0)

    return by_vmap


def seconds(action: Callable[[], Any], repeats: int) -> float:
    """Per call, after one that warms up."""
    action()
    start = time.perf_counter()
    for _ in range(repeats):
        action()
    return (time.perf_counter() - start) / repeats


def phases(env_id: str, memory_size: int, layers: str) -> dict[str, float]:
    """Milliseconds per environment step."""
    env, stack, architecture = make_env(env_id), make_stack(env_id, memory_size, layers), network(env_id)
    n_actions = architecture.n_actions
    env.reset(seed=0)
    played = []
    for _ in range(1000):
        obs, _, terminated, truncated, _ = env.step(env.action_space.sample())
        played.append(obs)
        if terminated or truncated:
            env.reset()
    observations = torch.as_tensor(np.stack(played)).repeat(BUFFER_SIZE // 1000, *[1] * np.ndim(played[0]))
    replay = {"obs": observations, "next_obs": observations, "action": torch.zeros(BUFFER_SIZE, dtype=torch.long)}
    replay |= {"reward": torch.zeros(BUFFER_SIZE), "terminated": torch.zeros(BUFFER_SIZE, dtype=torch.bool)}
    logits = torch.zeros(BUFFER_SIZE, n_actions, dtype=torch.float64)
    log_pi = logits.log_softmax(-1)
    width = architecture.hidden_size
    critics = [make_network(env.observation_space, n_actions, width) for _ in range(N_CRITICS)]
    optimizer = torch.optim.Adam([w for critic in critics for w in critic.parameters()], lr=1e-4)
    settings, n = Settings(), 60

    def act() -> None:
        torch.multinomial(stack(observations[:1]).softmax(-1), 1).item()

    def recompute_a_batch() -> None:
        logits[:BATCH_SIZE] = stack(observations[:BATCH_SIZE])

    def gradient_steps() -> None:
        batches = torch.randint(BUFFER_SIZE, (n, BATCH_SIZE))
        evaluate(critics, optimizer, replay, log_pi, batches, 1.0, settings)

    def env_step() -> None:
        if any(env.step(env.action_space.sample())[2:4]):
            env.reset()

    return {
        "acting": 1000 * seconds(act, 20),
        "env": 1000 * seconds(env_step, 500),
        "replay": 1000 * seconds(recompute_a_batch, 2) * BUFFER_SIZE / BATCH_SIZE / INTERVAL,
        "gradient": 1000 * seconds(gradient_steps, 1) / n,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("env")
    parser.add_argument("--memory-size", type=int, default=300)
    parser.add_argument("--layers", choices=["list", "vmap", "batched"], default="list")
    options = parser.parse_args()
    ms = phases(options.env, options.memory_size, options.layers)
    print(json.dumps({"ms": ms, "total_ms": sum(ms.values()), "peak_gb": peak_memory()}))


if __name__ == "__main__":
    main()
