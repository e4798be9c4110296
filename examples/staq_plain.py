"""StaQ in one file: exact policy mirror descent with a finite memory, by autograd and a list of networks.

    python examples/staq_plain.py                 # CartPole-v1 in a few minutes; needs torch and gymnasium only

Each iteration has three acts (Alg. 1 of the paper):

    collect    environment steps under the fixed policy π_k                                            → replay
    evaluate   gradient steps on the soft Bellman target under π_k                                     → q_k
    improve    push q_k onto a stack of M: π_{k+1} = softmax(α/(1−β^M) Σ_{i<M} β^i q_{k−i}), Eq. 2      → π_{k+1}

Nothing here is fast. The library computes the same numbers: its tests compare it with these functions.
"""

from __future__ import annotations

import argparse
import copy
import math
from dataclasses import dataclass, fields

import gymnasium
import numpy as np
import torch
from torch import nn

Ensemble = list[nn.Module]
"""E networks whose mean is one Q-function."""


@dataclass
class Settings:
    """The paper's Table 2 in brackets, where this is smaller so that CartPole takes minutes."""

    env_id: str = "CartPole-v1"
    steps: int = 60_000
    seed: int = 0
    n_envs: int = 10
    memory_size: int = 100  # M [300]
    interval: int = 1000  # environment steps, and gradient steps, per iteration [5000]
    kl_weight: float = 20.0  # η
    entropy_init: float = 2.0  # τ · ln|A| at the start …
    entropy_final: float = 0.4  # … and after entropy_decay_steps
    entropy_decay_steps: int = 20_000  # [500k]
    reward_scale: float = 10.0
    gamma: float = 0.99
    epsilon: float = 0.05  # uniform actions while collecting
    n_critics: int = 2
    width: int = 128  # of the hidden layers [256]
    learning_rate: float = 1e-3  # [1e-4]
    batch_size: int = 128  # [256]
    buffer_size: int = 50_000
    target_interval: int = 200  # gradient steps between hard copies


class Board(nn.Module):
    """Boards of bits, height × width × channel, as PyTorch's convolutions want them."""

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return obs.float().permute(0, 3, 1, 2)


def make_network(space: gymnasium.spaces.Space, n_actions: int, width: int) -> nn.Module:
    """The paper's: Conv(16, 3, 3) + width on boards, width × 2 on vectors. q = 0 at first, so π_0 is uniform."""
    assert space.shape is not None
    if len(space.shape) == 3:
        height, side, channels = space.shape
        trunk = [Board(), nn.Conv2d(channels, 16, 3), nn.ReLU(), nn.Flatten()]
        trunk += [nn.Linear(16 * (height - 2) * (side - 2), width), nn.ReLU()]
    else:
        trunk = [nn.Linear(math.prod(space.shape), width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()]
    output = nn.Linear(width, n_actions)
    nn.init.zeros_(output.weight)
    nn.init.zeros_(output.bias)
    return nn.Sequential(*trunk, output)


def mean_q(ensemble: Ensemble, obs: torch.Tensor) -> torch.Tensor:
    """q(s, ·), the mean of the ensemble. [B, ...] → [B, A]"""
    return torch.stack([network(obs) for network in ensemble]).mean(0)


@torch.no_grad()
def accumulated_logits(stack: list[Ensemble], weights: list[float], n_actions: int, obs: torch.Tensor) -> torch.Tensor:
    """c(s) = Σ_i w_i q_i(s), each q centred over actions, which leaves the policy as it is. [B, ...] → [B, A]"""
    total = torch.zeros(len(obs), n_actions, dtype=torch.float64)
    for weight, ensemble in zip(weights, stack, strict=True):
        q = mean_q(ensemble, obs).double()
        total += weight * (q - q.mean(-1, keepdim=True))
    return total


def soft_bellman_target(
    reward: torch.Tensor,
    terminated: torch.Tensor,
    next_q: torch.Tensor,
    next_log_pi: torch.Tensor,
    tau: float,
    settings: Settings,
) -> torch.Tensor:
    """scale · r + γ (1 − terminated) [Σ_a π(a|s') q(s', a) + τ H(π(s'))]. Truncation bootstraps. → [B]"""
    pi = next_log_pi.exp()
    value = (pi * next_q).sum(-1) - tau * (pi * next_log_pi).sum(-1)
    return settings.reward_scale * reward + settings.gamma * torch.where(terminated, 0.0, value)


def evaluate(
    critics: Ensemble,
    optimizer: torch.optim.Optimizer,
    replay: dict[str, torch.Tensor],
    next_log_pi: torch.Tensor,
    batches: torch.Tensor,
    tau: float,
    settings: Settings,
) -> float:
    """q_{k−1} → q_k: a gradient step per batch of rows [steps, B] on ½ (q − target)², Eq. 13. → the last loss"""
    for step, rows in enumerate(batches):
        if step % settings.target_interval == 0:
            targets = copy.deepcopy(critics)
        with torch.no_grad():
            next_q = mean_q(targets, replay["next_obs"][rows])
            target = soft_bellman_target(
                replay["reward"][rows], replay["terminated"][rows], next_q, next_log_pi[rows].float(), tau, settings
            )
        taken = [critic(replay["obs"][rows]).gather(1, replay["action"][rows, None]).squeeze(1) for critic in critics]
        loss = sum(0.5 * (q - target).square().mean() for q in taken)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def improve(
    stack: list[Ensemble], weights: list[float], critics: Ensemble, beta: float, memory_size: int
) -> tuple[list[Ensemble], list[float]]:
    """Push a copy of q_k; every older Q-function fades by β, and the oldest goes once there are M."""
    pushed = [*stack, copy.deepcopy(critics)]
    faded = [*(beta * weight for weight in weights), 1.0]
    return pushed[-memory_size:], faded[-memory_size:]


def train(settings: Settings) -> list[float]:
    """The returns of all episodes, in the order in which they ended."""
    torch.manual_seed(settings.seed)
    rng = np.random.default_rng(settings.seed)
    envs = [gymnasium.make(settings.env_id) for _ in range(settings.n_envs)]
    assert isinstance(envs[0].action_space, gymnasium.spaces.Discrete)
    n_actions = int(envs[0].action_space.n)
    obs = np.stack([env.reset(seed=settings.seed + i)[0] for i, env in enumerate(envs)])
    critics = [make_network(envs[0].observation_space, n_actions, settings.width) for _ in range(settings.n_critics)]
    optimizer = torch.optim.Adam([w for critic in critics for w in critic.parameters()], lr=settings.learning_rate)
    stack: list[Ensemble] = []
    weights: list[float] = []
    replay: dict[str, torch.Tensor] = {}
    returns, scores = [], np.zeros(settings.n_envs)
    for start in range(0, settings.steps, settings.interval):
        # τ_k, α_k, β_k and the prefactor of Eq. 2: constant during the iteration
        progress = min(start / settings.entropy_decay_steps, 1.0)
        scaled = settings.entropy_init + progress * (settings.entropy_final - settings.entropy_init)
        tau = scaled / math.log(n_actions)
        alpha, beta = 1 / (settings.kl_weight + tau), settings.kl_weight / (settings.kl_weight + tau)
        prefactor = alpha / (1 - beta**settings.memory_size)

        # collect
        steps = []
        for _ in range(settings.interval // settings.n_envs):
            logits = prefactor * accumulated_logits(stack, weights, n_actions, torch.as_tensor(obs))
            pi = (1 - settings.epsilon) * logits.softmax(-1) + settings.epsilon / n_actions
            actions = torch.multinomial(pi, 1).squeeze(1).numpy()
            for i, env in enumerate(envs):
                next_obs, reward, terminated, truncated, _ = env.step(int(actions[i]))
                steps.append((obs[i].copy(), actions[i], float(reward), next_obs, terminated))
                scores[i] += float(reward)
                if terminated or truncated:
                    next_obs, _ = env.reset(seed=int(rng.integers(2**31)))
                    returns.append(float(scores[i]))
                    scores[i] = 0.0
                obs[i] = next_obs
        names = ("obs", "action", "reward", "next_obs", "terminated")
        fresh = {
            name: torch.as_tensor(np.stack(values))
            for name, values in zip(names, zip(*steps, strict=True), strict=True)
        }
        fresh["reward"] = fresh["reward"].float()
        replay = {k: torch.cat([replay[k], v])[-settings.buffer_size :] if replay else v for k, v in fresh.items()}

        # evaluate
        chunks = replay["next_obs"].split(1000)
        accumulated = torch.cat([accumulated_logits(stack, weights, n_actions, chunk) for chunk in chunks])
        next_log_pi = (prefactor * accumulated).log_softmax(-1)
        batches = torch.randint(len(next_log_pi), (settings.interval, settings.batch_size))
        loss = evaluate(critics, optimizer, replay, next_log_pi, batches, tau, settings)

        # improve
        stack, weights = improve(stack, weights, critics, beta, settings.memory_size)
        mean = np.mean(returns[-20:]) if returns else math.nan
        done = start + settings.interval
        print(f"{done:7d} steps   return {mean:6.1f}   loss {loss:8.2f}   {len(stack)} Q-functions", flush=True)
    return returns


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for field in fields(Settings):
        flag = f"--{field.name.replace('_', '-')}"
        parser.add_argument(flag, type=type(field.default), default=field.default, help="(%(default)s)")
    train(Settings(**vars(parser.parse_args())))
