"""The paper's scheme, written plainly: what the library is measured against.

    python -m benchmarks.plain MinAtar/SpaceInvaders-v1 [--layers batched]

One environment; the whole stack evaluated for every action, and for every replayed state in every iteration;
targets for every draw; gradients by autograd. Each phase is timed on a sample and they are added up by the
schedule: 5,000 environment steps, as many gradient steps, then the replay once. ``--layers`` says how many
networks are evaluated at once: ``vmap``, PyTorch's own way to stack modules, or the library's ``batched`` layers,
which shows how much of the difference is the scheme and how much the layers.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from staq.envs.make import make_env
from staq.experiments.timing import BATCH_SIZE, BUFFER_SIZE, INTERVAL, N_CRITICS, network, peak_memory
from staq.networks.conv_mlp import ConvMlp
from staq.networks.ensemble import QEnsemble


class PlainNetwork(nn.Module):
    """The paper's network as one would write it."""

    def __init__(self, architecture: ConvMlp) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for i, (filters, kernel, stride) in enumerate(architecture.conv_arch):
            channels = architecture.trunk_shapes[f"conv.{i}"][0] // kernel**2
            layers += [nn.Conv2d(channels, filters, kernel, stride), nn.ReLU()]
        layers.append(nn.Flatten())
        for i in range(len(architecture.net_arch)):
            layers += [nn.Linear(*architecture.trunk_shapes[f"mlp.{i}"]), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Linear(architecture.hidden_size, architecture.n_actions))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q: torch.Tensor = self.layers(x)
        return q


class Vmapped:
    """N plain networks by ``torch.func``."""

    def __init__(self, architecture: ConvMlp, n: int) -> None:
        self.architecture = architecture
        networks = [PlainNetwork(architecture) for _ in range(n)]
        stacked, _ = torch.func.stack_module_state(networks)
        self.weights = {name: w.detach().requires_grad_() for name, w in stacked.items()}
        self.template = networks[0].to("meta")

    def __call__(self, obs: torch.Tensor) -> torch.Tensor:
        """[B, ...] → [N, B, A]"""
        x = self.architecture.preprocessed(obs)
        x = x.permute(0, 3, 1, 2) if self.architecture.conv_arch else x
        call = torch.vmap(lambda weights: torch.func.functional_call(self.template, weights, (x,)))
        q: torch.Tensor = call(self.weights)
        return q


class Batched:
    """N networks by the library's layers."""

    def __init__(self, architecture: ConvMlp, n: int) -> None:
        self.networks = QEnsemble(architecture, n)
        self.weights = self.networks.weights

    def __call__(self, obs: torch.Tensor) -> torch.Tensor:
        return self.networks(obs).transpose(1, 2)


def seconds(action: Callable[[], Any], repeats: int) -> float:
    """Per call, after one that warms up."""
    action()
    start = time.perf_counter()
    for _ in range(repeats):
        action()
    return (time.perf_counter() - start) / repeats


def phases(env_id: str, memory_size: int, layers: str) -> dict[str, float]:
    """Milliseconds per environment step."""
    env, architecture = make_env(env_id), network(env_id)
    stacked: type[Vmapped] | type[Batched] = Vmapped if layers == "vmap" else Batched
    stack = stacked(architecture, memory_size * N_CRITICS)
    critics, targets = (stacked(architecture, N_CRITICS) for _ in range(2))
    optimizer = torch.optim.Adam(critics.weights.values(), lr=1e-4)
    share = torch.rand(memory_size * N_CRITICS, 1, 1)
    env.reset(seed=0)
    played = []
    for _ in range(1000):
        obs, _, terminated, truncated, _ = env.step(env.action_space.sample())
        played.append(obs)
        if terminated or truncated:
            env.reset()
    observations = torch.as_tensor(np.stack(played)).repeat(BUFFER_SIZE // 1000, *[1] * np.ndim(played[0]))
    logits = torch.zeros(BUFFER_SIZE, architecture.n_actions)

    @torch.no_grad()
    def stack_logits(obs: torch.Tensor) -> torch.Tensor:
        return (share * stack(obs)).sum(0)

    def act() -> None:
        torch.multinomial(stack_logits(observations[:1]).softmax(-1), 1).item()

    def recompute_a_batch() -> None:
        logits[:BATCH_SIZE] = stack_logits(observations[:BATCH_SIZE])

    def gradient_step() -> None:
        rows = torch.randint(BUFFER_SIZE, (BATCH_SIZE,))
        actions = torch.zeros(N_CRITICS, BATCH_SIZE, 1, dtype=torch.long)
        with torch.no_grad():
            pi = logits[rows].softmax(-1)
            value = (pi * (targets(observations[rows]).mean(0) - pi.log())).sum(-1)
        q = critics(observations[rows]).gather(2, actions).squeeze(-1)
        optimizer.zero_grad()
        (0.5 * (q - value).square().mean(-1).sum()).backward()
        optimizer.step()

    def env_step() -> None:
        if any(env.step(env.action_space.sample())[2:4]):
            env.reset()

    return {
        "acting": 1000 * seconds(act, 20),
        "env": 1000 * seconds(env_step, 500),
        "replay": 1000 * seconds(recompute_a_batch, 2) * BUFFER_SIZE / BATCH_SIZE / INTERVAL,
        "gradient": 1000 * seconds(gradient_step, 60),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("env")
    parser.add_argument("--memory-size", type=int, default=300)
    parser.add_argument("--layers", choices=["vmap", "batched"], default="vmap")
    options = parser.parse_args()
    ms = phases(options.env, options.memory_size, options.layers)
    print(json.dumps({"ms": ms, "total_ms": sum(ms.values()), "peak_gb": peak_memory()}))


if __name__ == "__main__":
    main()
