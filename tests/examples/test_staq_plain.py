"""The library against the paper's algorithm in one plain file: the same stack, targets, gradient steps and pushes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from examples import staq_plain as plain
from staq import StaQ
from staq.networks.architecture import OUTPUT_BIAS, Weights
from staq.networks.conv_mlp import ConvMlp
from tests.conftest import small_model, targets_of

ENVS = ["CartPole-v1", "MinAtar/Breakout-v1"]


def model_of(env_id: str, **arguments: Any) -> StaQ:
    """With the plain file's kind of network."""
    network = {"net_arch": [16], "conv_arch": [(16, 3, 1)]} if env_id.startswith("MinAtar") else {"net_arch": [16, 16]}
    return small_model(env_id, policy_kwargs=network, **arguments)


def as_plain(model: StaQ, weights: Weights) -> plain.Ensemble:
    """E ordinary modules with the weights of one of the library's ensembles [E, ...]."""
    architecture = model.policy.architecture
    assert isinstance(architecture, ConvMlp)
    modules = []
    for e in range(len(weights[OUTPUT_BIAS])):
        own = {name: w[e].detach() for name, w in weights.items()}
        module: Any = plain.make_network(model.observation_space, architecture.n_actions, 16)
        layers = [layer for layer in module if isinstance(layer, (nn.Conv2d, nn.Linear))]
        names = [*architecture.trunk_shapes, "output"]
        with torch.no_grad():
            for layer, name in zip(layers, names, strict=True):
                layer.bias.copy_(own[f"{name}.bias"])
                weight = own[f"{name}.weight"]
                if name == "output":
                    layer.weight.copy_(weight)
                elif isinstance(layer, nn.Conv2d):  # patches are (row, column, channel)
                    layer.weight.copy_(weight.view(3, 3, -1, 16).permute(3, 2, 0, 1))
                elif architecture.conv_arch:  # positions before filters
                    layer.weight.copy_(weight.view(*architecture.first_size, 16, -1).permute(3, 2, 0, 1).flatten(1))
                else:
                    layer.weight.copy_(weight.t())
        modules.append(module)
    return modules


def plain_stack(model: StaQ) -> list[plain.Ensemble]:
    stack: Any = model.policy.improvement
    return [as_plain(model, stack.stack.ensemble(entry)) for entry in stack.stack.entries]


def plain_settings(model: StaQ) -> plain.Settings:
    shared: Any = model
    return plain.Settings(
        reward_scale=shared.reward_scale,
        gamma=shared.gamma,
        learning_rate=shared.learning_rate,
        batch_size=shared.batch_size,
        target_interval=shared.target_update_interval,
    )


@pytest.mark.parametrize("env_id", ENVS)
def test_the_stack_is_a_list_of_networks(env_id: str) -> None:
    model = model_of(env_id).learn(1000)
    obs, stack = model.replay.observations[:40], model.policy.improvement.stack
    expected = plain.accumulated_logits(
        plain_stack(model), stack.relative_weights, model.policy.architecture.n_actions, obs
    )
    assert expected.abs().max() > 0.001
    torch.testing.assert_close(model.policy.improvement.accumulated(obs), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("env_id", ENVS)
def test_targets_are_those_of_the_equation(env_id: str) -> None:
    model = model_of(env_id, reward_scale=3.0).learn(800)
    replay, rows = model.replay, model.replay.draw(1, 64)
    log_pi = model.policy.logits_of(replay.next_observations[rows[0]]).log_softmax(-1).float()
    next_q = plain.mean_q(as_plain(model, model.policy.q_net_target.weights), replay.next_observations[rows[0]])
    tau, settings = model.step_size.entropy_weight, plain_settings(model)
    rewards, terminated = replay.rewards[rows[0]], replay.terminated[rows[0]]
    expected = plain.soft_bellman_target(rewards, terminated, next_q, log_pi, tau, settings)
    torch.testing.assert_close(targets_of(model, rows)[0], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("env_id", ENVS)
def test_evaluation_equals_the_plain_one(env_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """200 gradient steps: distinct targets at once and closed-form gradients, against neither of them."""
    model = model_of(env_id, learning_rate=1e-3).learn(800)
    evaluate, compared = model.evaluate, []

    def both() -> None:
        model.policy.optimizer.state.clear()
        replay, critics = model.replay, as_plain(model, model.policy.q_net.weights)
        optimizer = torch.optim.Adam([w for critic in critics for w in critic.parameters()], lr=1e-3)
        generator = model._generators["replay"].clone_state()
        drawn = [
            torch.randint(replay.size(), (min(50, 200 - start), model.batch_size), generator=generator)
            for start in range(0, 200, 50)
        ]
        experience = {
            "obs": replay.observations,
            "action": replay.actions,
            "reward": replay.rewards,
            "next_obs": replay.next_observations,
            "terminated": replay.terminated,
        }
        log_pi = model.policy.logits_of(replay.next_observations).log_softmax(-1)
        tau = model.step_size.entropy_weight
        plain.evaluate(critics, optimizer, experience, log_pi, torch.cat(drawn), tau, plain_settings(model))
        evaluate()
        obs = replay.observations[:100]
        with torch.no_grad():
            expected = torch.stack([critic(obs) for critic in critics]).mT  # [E, A, B]
            torch.testing.assert_close(model.policy.q_net(obs), expected, rtol=1e-3, atol=1e-3)
        for ours, theirs in zip(as_plain(model, model.policy.q_net.weights), critics, strict=True):
            for w, v in zip(ours.parameters(), theirs.parameters(), strict=True):
                torch.testing.assert_close(w, v, rtol=1e-3, atol=1e-4)
        compared.append(model.iteration)

    monkeypatch.setattr(model, "evaluate", both)
    model.learn(200, reset_num_timesteps=False)
    assert compared == [4]


def test_a_push_is_the_plain_one() -> None:
    model = model_of("CartPole-v1").learn(600)
    stack, beta = model.policy.improvement.stack, model.step_size.beta
    before, weights = plain_stack(model), list(stack.relative_weights)
    critics = as_plain(model, model.policy.q_net.weights)
    ensembles, faded = plain.improve(before, weights, critics, beta, 3)
    stack.push(model.policy.q_net.weights, beta)
    assert stack.relative_weights == pytest.approx(faded)
    obs = model.replay.observations[:20]
    for ours, theirs in zip(plain_stack(model), ensembles, strict=True):
        torch.testing.assert_close(plain.mean_q(ours, obs), plain.mean_q(theirs, obs))


def test_it_runs_and_the_first_policy_is_uniform(capsys: pytest.CaptureFixture[str]) -> None:
    settings = plain.Settings(steps=600, interval=200, width=16, batch_size=32, memory_size=2)
    returns = plain.train(settings)
    assert 10 < np.mean(returns) < 40  # CartPole under nearly uniform actions
    assert capsys.readouterr().out.count("2 Q-functions") == 2
    network = plain.make_network(model_of("CartPole-v1").observation_space, 2, 16)
    assert torch.count_nonzero(network(torch.randn(5, 4))) == 0


@pytest.mark.slow
def test_it_solves_cartpole() -> None:
    assert np.mean(plain.train(plain.Settings())[-20:]) >= 475
