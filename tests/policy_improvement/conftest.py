"""Critics and actors that are tables: one-hot states and linear networks, where the exact update is known."""

from __future__ import annotations

import torch
from gymnasium import spaces

from staq.experience.states import States
from staq.networks.architecture import OUTPUT_BIAS, OUTPUT_WEIGHT
from staq.networks.conv_mlp import ConvMlp
from staq.networks.ensemble import QEnsemble
from staq.policy_improvement.actor import Actor
from staq.policy_improvement.improvement import LogitsChange
from staq.policy_improvement.mirror_descent import StepSize
from staq.policy_improvement.natural_gradient import NaturalGradient

N_STATES, N_ACTIONS = 6, 3
STEP = StepSize(entropy_weight=0.4, kl_weight=0.8)
SPACE = spaces.Discrete(N_STATES)


def linear() -> ConvMlp:
    """Logits that are a table: one-hot states, no hidden layer."""
    return ConvMlp(SPACE, N_ACTIONS, net_arch=[])


GENERATOR = torch.Generator()


def random_critics(architecture: ConvMlp | None = None) -> QEnsemble:
    """Two critics with random tables."""
    torch.manual_seed(0)
    GENERATOR.manual_seed(0)
    critics = QEnsemble(architecture or linear(), 2)
    with torch.no_grad():
        critics.weights[OUTPUT_WEIGHT].normal_()
        critics.weights[OUTPUT_BIAS].normal_()
    return critics


def improve(update: Actor, critics: QEnsemble) -> LogitsChange:
    """An update on states of which every one occurs equally often."""
    obs = torch.arange(4 * N_STATES) % N_STATES
    states = States(
        obs,
        lambda: critics(obs).mean(0).t(),
        lambda rows: update.log_policy(obs[rows]),
        lambda n: torch.randint(len(obs), (n or 1, 24), generator=GENERATOR),
    )
    return update.improve(critics, states, STEP)


def policy(update: Actor) -> torch.Tensor:
    return update.logits(update.accumulated(torch.arange(N_STATES))).log_softmax(-1)


def table(critics: QEnsemble) -> torch.Tensor:
    with torch.no_grad():
        return critics(torch.arange(N_STATES)).mean(0).t().double()


def natural_gradient(
    max_kl: float = 1e-4, architecture: ConvMlp | None = None, cg_steps: int = 60, damping: float = 0.0
) -> NaturalGradient:
    settings = NaturalGradient.Settings(max_kl, cg_steps, damping, line_search_steps=10)
    return NaturalGradient(architecture or linear(), 2, settings)
