"""PQN (arXiv:2407.04811) as one would write it: autograd, ε-greedy, λ-returns of max q. What a user would take instead.

    python -m benchmarks.plain_pqn MinAtar/Breakout-v1 --layers conv2d

Environments, minibatches, passes, network and norm are those of StaQ's λ-returns. The last line is JSON: milliseconds
per environment step in the environments, and outside of them.
"""

from __future__ import annotations

import argparse
import json
import statistics
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.lambda_returns import EPOCHS, ITERATIONS, MINIBATCH, N_ENVS, N_STEPS, Stopwatch
from staq.envs.make import make_envs
from staq.experiments.timing import peak_memory

GAMMA, LAMBDA, EPSILON, CLIP, RATE = 0.99, 0.65, 0.05, 10.0, 5e-4


class Network(nn.Module):
    """Conv(16, 3, 3) + 128 with LayerNorm, the convolution as PyTorch has it or as a product over patches."""

    def __init__(self, shape: tuple[int, int, int], n_actions: int, layers: str) -> None:
        super().__init__()
        height, width, channels = shape
        self.patches = layers == "patches"
        self.convolution = nn.Linear(9 * channels, 16) if self.patches else nn.Conv2d(channels, 16, 3)
        self.norms = nn.ModuleList([nn.LayerNorm(16), nn.LayerNorm(128)])
        self.hidden = nn.Linear((height - 2) * (width - 2) * 16, 128)
        self.output = nn.Linear(128, n_actions)

    def forward(self, boards: torch.Tensor) -> torch.Tensor:
        x = boards.view(torch.uint8).float()
        if self.patches:
            x = x.unfold(1, 3, 1).unfold(2, 3, 1).flatten(3)  # [B, H', W', C·9]
            x = self.convolution(x)
        else:
            x = self.convolution(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        x = self.norms[0](x).relu().flatten(1)
        q: torch.Tensor = self.output(self.norms[1](self.hidden(x)).relu())
        return q


def iteration(
    network: Network, optimizer: torch.optim.Optimizer, envs: Stopwatch, obs: np.ndarray, generator: torch.Generator
) -> np.ndarray:
    """A rollout and its passes. → where the environments are"""
    stored: list[tuple[torch.Tensor, ...]] = []
    for _ in range(N_STEPS):
        boards = torch.as_tensor(obs)
        with torch.no_grad():
            q = network(boards)
        explores = torch.rand(N_ENVS, generator=generator) < EPSILON
        random = torch.randint(q.shape[1], (N_ENVS,), generator=generator)
        actions = torch.where(explores, random, q.argmax(-1))
        found: Any = envs.step(actions.numpy())
        obs, rewards, dones, _ = found
        stored.append((boards, actions, torch.as_tensor(rewards), torch.as_tensor(dones), q.amax(-1)))
    boards, actions, rewards, dones, best = map(torch.stack, zip(*stored, strict=True))
    with torch.no_grad():
        ahead = network(torch.as_tensor(obs)).amax(-1)
    going_on, targets = GAMMA * ~dones, torch.empty_like(rewards)
    targets[-1] = rewards[-1] + going_on[-1] * ahead
    for t in reversed(range(N_STEPS - 1)):
        targets[t] = rewards[t] + going_on[t] * ((1 - LAMBDA) * best[t + 1] + LAMBDA * targets[t + 1])
    flat = boards.flatten(0, 1), actions.flatten(), targets.flatten()
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(flat[0]), generator=generator).split(MINIBATCH):
            seen, taken, target = (values[rows] for values in flat)
            q = network(seen).gather(1, taken.unsqueeze(1)).squeeze(1)
            loss = 0.5 * (q - target).square().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(network.parameters(), CLIP)
            optimizer.step()
    return obs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("env")
    parser.add_argument("--layers", choices=["conv2d", "patches"], default="conv2d")
    options = parser.parse_args()
    torch.manual_seed(0)
    venv = make_envs(options.env, N_ENVS)
    venv.seed(0)
    network = Network(venv.observation_space.shape, venv.action_space.n, options.layers)  # type: ignore[arg-type,attr-defined]
    optimizer = torch.optim.RAdam(network.parameters(), RATE, foreach=True)  # the faster of PyTorch's two
    envs, obs, generator = Stopwatch(venv), np.asarray(venv.reset()), torch.Generator().manual_seed(0)
    found = []
    for _ in range(ITERATIONS + 1):
        with envs.timed() as times:
            obs = iteration(network, optimizer, envs, obs, generator)
        found.append(times)
    ms = {part: statistics.median(times[part] for times in found[1:]) for part in found[0]}
    print(json.dumps({"ms": ms, "total_ms": sum(ms.values()), "peak_gb": peak_memory()}))


if __name__ == "__main__":
    main()
