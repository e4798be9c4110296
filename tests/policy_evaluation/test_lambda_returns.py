"""λ-returns by hand, against Q of the policy where that is known, and as they train."""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.vec_env import DummyVecEnv

from staq import StaQ
from staq.actions import Factors
from staq.policy_evaluation import lambda_returns as module
from staq.policy_evaluation.lambda_returns import own_probability
from staq.policy_evaluation.soft_bellman import lambda_returns, soft_target
from staq.tabular import mdp as tabular
from staq.tabular.operators import policy_of, q_of_policy
from tests.conftest import host_reads, lambda_model

GAMMA, SCALE = 0.5, 2.0


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64).unsqueeze(-1)


def returns(terminated: Any = (), cut: Any = (), trace: Any = (1, 1, 1, 1), **changed: Any) -> list[float]:
    """Of four steps with rewards 1, 2, 3, 4, values 10, 20, 30, 40 of what follows and bonuses 0, 1, 2, 3."""
    given: dict[str, Any] = {
        "reward": column(1, 2, 3, 4),
        "terminated": torch.tensor([[t in terminated] for t in range(4)]),
        "cut": torch.tensor([[t in (*terminated, *cut, 3)] for t in range(4)]),
        "next_value": column(10, 20, 30, 40),
        "trace": column(*trace),
        "entropy_bonus": column(0, 1, 2, 3),
        "discount": GAMMA,
        "reward_scale": SCALE,
    }
    found: list[float] = lambda_returns(**given | changed)[:, 0].tolist()
    return found


def test_up_to_the_rollouts_end() -> None:
    """λ = 1: rewards and bonuses on the way, and V at the end."""
    assert returns() == [2 + 0.5 * (1 + 4 + 0.5 * (2 + 6 + 0.5 * (3 + 8 + 0.5 * 40))), *returns()[1:]]
    assert returns()[3] == 8 + 0.5 * 40
    assert returns()[2] == 6 + 0.5 * (3 + returns()[3])


def test_a_termination_cuts_everything() -> None:
    found = returns(terminated=[1])
    assert found[1] == 4.0
    assert found[0] == 2 + 0.5 * (1 + 4.0)
    assert found[2:] == returns()[2:]


def test_a_truncation_looks_at_the_value_of_its_last_state() -> None:
    found = returns(cut=[1])
    assert found[1] == 4 + 0.5 * 20
    assert found[0] == 2 + 0.5 * (1 + found[1])


def test_an_action_that_was_not_the_policys_own() -> None:
    """Its return counts by the probability that it was: here not at all, and by a quarter."""
    found = returns(trace=[1, 1, 0, 1])
    assert found[1] == 4 + 0.5 * 20
    assert found[2] == returns()[2]
    quarter = returns(trace=[1, 1, 0.25, 1])
    assert quarter[1] == 4 + 0.5 * (0.75 * 20 + 0.25 * (2 + returns()[2]))


def test_no_trace_is_one_step() -> None:
    expected = soft_target(column(1, 2, 3, 4), torch.zeros(4, 1).bool(), column(10, 20, 30, 40), GAMMA, SCALE)
    assert returns(trace=[0, 0, 0, 0]) == expected[:, 0].tolist()


@pytest.mark.parametrize("epsilon", [0.0, 0.05, 0.5, 1.0])
def test_the_probability_that_an_action_was_the_policys_own(epsilon: float) -> None:
    pi = torch.tensor([[0.7, 0.2, 0.1], [0.7, 0.2, 0.1], [1 - 2e-30, 1e-30, 1e-30]])
    actions = torch.tensor([0, 2, 1])
    chosen = pi.gather(1, actions[:, None])[:, 0]
    expected = (1 - epsilon) * chosen / ((1 - epsilon) * chosen + epsilon / 3)
    torch.testing.assert_close(own_probability(pi.log(), actions, epsilon, Factors([3])), expected)


def test_of_several_parts_it_is_that_of_the_whole_action() -> None:
    first, second = torch.tensor([0.7, 0.3]), torch.tensor([0.5, 0.4, 0.1])
    log_pi = torch.cat([first, second]).log().unsqueeze(0)
    chosen = 0.3 * 0.4
    expected = 0.9 * chosen / (0.9 * chosen + 0.1 / 6)
    found = own_probability(log_pi, torch.tensor([[1, 1]]), 0.1, Factors([2, 3]))
    assert found.item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("behaviour", ["softmax", "sticky"])
def test_targets_equal_a_plain_loop(behaviour: str) -> None:
    """The recursion of the paper's notation, environment by environment and backwards, from q before the iteration."""
    model: Any = lambda_model(behaviour=behaviour, epsilon=0.3, reward_scale=3.0, trace_decay=0.8, sticky_rate=2.0)
    model.learn(400)
    callback = model._init_callback(None)
    callback.on_training_start({}, {})
    model.collect(callback)
    rollout, policy, tau = model.experience, model.policy, model.step_size.entropy_weight
    found = model.policy_evaluation.targets(rollout, model.shared, model.evaluation_settings, model.step_size)

    def look(obs: torch.Tensor) -> tuple[list[float], float, float]:
        pi = policy.logits_of(obs.unsqueeze(0)).softmax(-1)[0].tolist()
        q = policy.q_net(obs.unsqueeze(0)).mean(0)[:, 0].tolist()
        bonus = -tau * sum(p * math.log(p) for p in pi)
        return pi, sum(p * x for p, x in zip(pi, q, strict=True)) + bonus, bonus

    followed = dict(zip(rollout.next_rows.tolist(), rollout.next_observations, strict=True))
    assert (behaviour == "sticky") == bool((~rollout.fresh[: rollout.length]).any())
    for env in range(4):
        after = None
        for t in reversed(range(rollout.length)):
            expected, row = 3.0 * rollout.rewards[t, env].item(), 4 * t + env
            if row in followed:
                expected += 0.99 * look(followed[row])[1]
            elif not rollout.terminated[t, env]:
                pi, value, bonus = look(rollout.observations[t + 1, env])
                own = 0.7 * pi[rollout.actions[t + 1, env]]
                trace = 0.8 * own / (own + 0.3 / 2) * rollout.fresh[t + 1, env].item()
                expected += 0.99 * ((1 - trace) * value + trace * (after + bonus))
            assert found[t, env].item() == pytest.approx(expected, rel=1e-4, abs=1e-4)
            after = expected


class Tabular(gymnasium.Env[np.int64, np.int64]):
    """A random MDP that is never over."""

    def __init__(self, mdp: tabular.MDP) -> None:
        self.mdp, self.state = mdp, 0
        self.observation_space, self.action_space = spaces.Discrete(mdp.n_states), spaces.Discrete(mdp.n_actions)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.int64, dict[str, Any]]:
        super().reset(seed=seed)
        self.state = int(self.np_random.integers(self.mdp.n_states))
        return np.int64(self.state), {}

    def step(self, action: np.int64) -> tuple[np.int64, float, bool, bool, dict[str, Any]]:
        reward = float(self.mdp.reward[self.state, action])
        self.state = int(
            self.np_random.choice(self.mdp.n_states, p=self.mdp.transition[self.state * self.mdp.n_actions + action])
        )
        return np.int64(self.state), reward, False, False, {}


def evaluated(epsilon: float) -> tuple[np.ndarray, np.ndarray]:
    """q of a policy that stays, learned from long rollouts on one-hot states; and what it should be. [S, A]"""
    mdp = tabular.dirichlet(4, 3, 0.8, np.random.default_rng(5))
    envs = DummyVecEnv([lambda: Tabular(mdp)] * 8)
    model = StaQ(
        "MlpPolicy",
        envs,
        evaluation="lambda",
        gamma=0.8,
        epsilon=epsilon,
        trace_decay=1.0,
        policy_update_interval=2048,
        batch_size=256,
        learning_rate=0.05,
        n_epochs=4,
        ent_weight_init=0.3,
        ent_weight_final=0.3,
        rollouts_per_update=1000,
        policy_kwargs={"net_arch": []},
        seed=3,
        device="cpu",
    )
    stack: Any = model.policy.improvement
    generator = torch.Generator().manual_seed(0)
    stack.stack.push({n: torch.randn(1, *s, generator=generator) for n, s in stack.stack.shapes.items()}, beta=0.0)
    stack.stack.prefactor = 0.6
    model._step_size = model.step_size.__class__(0.3 / math.log(3), 0.2)
    stack.begin_iteration = lambda step_size: None  # the policy is to stay as it is
    model.learn(16 * 2048)
    states = np.arange(4)
    log_pi = policy_of(model.logits(states))
    assert np.exp(log_pi).max() > 0.6, "a policy that is far from uniform"
    return model.q_values(states)[0][:, 0], q_of_policy(mdp, log_pi, model.step_size.entropy_weight)


@pytest.mark.parametrize("epsilon", [0.0, 0.5])
def test_q_tends_to_that_of_the_policy_whatever_the_behaviour(epsilon: float) -> None:
    q, expected = evaluated(epsilon)
    np.testing.assert_allclose(q, expected, atol=0.09)


def test_without_the_correction_it_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "own_probability", lambda log_pi, *_: torch.ones(len(log_pi)))
    q, expected = evaluated(0.5)
    assert np.abs(q - expected).max() > 0.15


@pytest.mark.parametrize("env_id", ["CartPole-v1", "MinAtar/Breakout-v1"])
def test_the_gradient_loop_reads_nothing_back(env_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = lambda_model(env_id).learn(200)
    callback = model._init_callback(None)
    callback.on_training_start({}, {})
    model.collect(callback)
    with host_reads(monkeypatch) as found:
        model.evaluate()
    assert found == [*["equal"] * len(model.policy.q_net.weights), "tolist"], "whether acting has said q already"


@pytest.mark.parametrize("memory_size", [1, 3, None])
@pytest.mark.parametrize("n_critics", [1, 2])
def test_what_acting_has_computed_is_not_computed_again(memory_size: int | None, n_critics: int) -> None:
    """q of a pushed ensemble comes with the stack's logits: the same targets, without a pass of the critics."""
    model: Any = lambda_model(memory_size=memory_size, n_critics=n_critics)
    model.learn(1000)
    callback = model._init_callback(None)
    callback.on_training_start({}, {})
    model.collect(callback)
    rollout, evaluation = model.experience, model.policy_evaluation
    assert rollout.has_q
    asked = []
    mean_q = model.policy.mean_q
    model.policy.mean_q = lambda obs: asked.append(len(obs)) or mean_q(obs)
    given = rollout, model.shared, model.evaluation_settings, model.step_size
    known = evaluation.targets(*given)
    assert asked == [len(rollout.next_rows)]
    rollout.has_q = False
    torch.testing.assert_close(known, evaluation.targets(*given), rtol=1e-4, atol=1e-4)
    rollout.has_q = True
    with torch.no_grad():
        model.policy.q_net.weights["output.bias"] += 1.0
    moved = evaluation.targets(*given)
    assert (moved - known).abs().min() > 0.1 or rollout.terminated.any(), "critics that moved are asked themselves"
    assert asked[-2:] == [len(rollout), len(rollout.next_rows)]


def test_the_learning_rate_falls_to_nothing_over_the_run_or_as_said() -> None:
    def rates(model: Any, steps: int) -> list[float]:
        seen = []
        evaluate = model.policy_evaluation.evaluate
        model.policy_evaluation.evaluate = lambda *a: (
            seen.append(model.policy.optimizer.param_groups[0]["lr"]) or evaluate(*a)
        )
        model.learn(steps)
        return seen

    assert rates(lambda_model(learning_rate=1.0), 800) == pytest.approx([1.0, 0.75, 0.5, 0.25])
    with pytest.warns(UserWarning, match="lr_decay_steps=400 the learning rate is 0") as caught:
        assert rates(lambda_model(learning_rate=1.0, lr_decay_steps=400), 800) == pytest.approx([1.0, 0.5, 0.0, 0.0])
    assert len(caught) == 1, "once, though it holds for two iterations"
    assert rates(lambda_model(learning_rate=lambda left: 1e-3), 400) == [1e-3] * 2
    actor = lambda_model(algorithm="ACMProj", learning_rate=1.0)
    actor.learn(400)
    assert actor.policy.improvement.optimizer.param_groups[0]["lr"] == 0.5


@pytest.mark.parametrize("optimizer", ["RAdam", "SGD"])
def test_gradients_are_clipped(optimizer: str) -> None:
    """To nothing: the networks stay where they were, whoever steps."""
    model: Any = lambda_model(max_grad_norm=1e-30, policy_kwargs={"net_arch": [16], "optimizer_class": optimizer})
    model.policy.optimizer.param_groups[0]["eps"] = 1.0  # Adam would divide by the size that was clipped
    before = {name: w.detach().clone() for name, w in model.policy.q_net.weights.items()}
    model.learn(400)
    for name, weight in model.policy.q_net.weights.items():
        torch.testing.assert_close(weight.detach(), before[name], rtol=0, atol=1e-12, msg=name)


def test_a_policy_may_wait_for_several_rollouts() -> None:
    model: Any = lambda_model(rollouts_per_update=3, memory_size=None)
    model.learn(1400)
    assert (model.iteration, len(model.policy.improvement.stack)) == (7, 2)


def test_the_loss_that_is_written_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = lambda_model()
    monkeypatch.setattr(type(model.policy_evaluation), "loss", lambda self, settings, q, target: (0 * q).sum())
    before = {name: w.detach().clone() for name, w in model.policy.q_net.weights.items()}
    model.learn(400)
    assert all(torch.equal(before[name], w) for name, w in model.policy.q_net.weights.items())
