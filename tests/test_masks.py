"""Forbidden actions: never taken, worth nothing, and mirror descent over the allowed ones is exact."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv

from staq import ActionMasks, Checkpoints, StaQ, load_policy, registry, resume
from staq.actions import Factors
from staq.actions.masks import FORBIDDEN, are_complete, forbid, log_count
from staq.experience.behaviour import Behaviour, epsilon_softmax
from staq.policy_evaluation.lambda_returns import own_probability
from staq.policy_evaluation.soft_bellman import entropy, soft_value
from staq.policy_improvement.mirror_descent import kl_divergence
from staq.registry import ALGORITHMS
from staq.tabular.mdp import masked
from staq.tabular.mirror_descent import Settings, run
from tests.conftest import StopAt, assert_identical
from tests.test_algorithms import Ring

ALLOWED = np.array([[1, 0, 1], [0, 1, 1], [1, 1, 1], [1, 0, 0]], dtype=bool)
SMALL: dict[str, Any] = {
    "policy_update_interval": 200,
    "batch_size": 32,
    "epsilon": 0.3,
    "seed": 0,
    "device": "cpu",
    "policy_kwargs": {"net_arch": [16]},
}
OWN: dict[str, dict[str, Any]] = {"ac-nokl": {"actor_steps": 10}, "ac-mproj": {"actor_steps": 10}}
OWN |= {"ac-directopt": {"actor_steps": 10}, "natgrad": {"cg_steps": 3}}
EVALUATIONS: dict[str, dict[str, Any]] = {"replay": {"gradient_steps": 20}, "lambda": {}}


class MaskedRing(Ring):
    """The ring, where some steps are forbidden, and taking one is an error."""

    def action_masks(self) -> np.ndarray:
        return ALLOWED[self.state]

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        assert ALLOWED[self.state, action], f"{action} is forbidden in {self.state}"
        return super().step(action)


class MaskedPair(gymnasium.Env[np.ndarray, np.ndarray]):
    """Two choices at once, of which some are forbidden."""

    observation_space = spaces.Box(0, 1, (3,), dtype=np.float32)
    action_space = spaces.MultiDiscrete([3, 2])

    def _draw(self) -> np.ndarray:
        allowed = self.np_random.random(5) < 0.4
        allowed[self.np_random.integers(3)] = allowed[3 + self.np_random.integers(2)] = True
        self.allowed = allowed
        return self.np_random.random(3).astype(np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self._draw(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        assert self.allowed[action[0]], "the first choice is forbidden"
        assert self.allowed[3 + action[1]], "the second choice is forbidden"
        self.steps += 1
        return self._draw(), float(action[0] - action[1]), self.steps == 15, self.steps == 10, {}

    def action_masks(self) -> np.ndarray:
        return self.allowed


def envs(kind: type[gymnasium.Env] = MaskedRing, n: int = 4) -> VecEnv:
    return DummyVecEnv([lambda: ActionMasks(kind())] * n)


def made(algo: str, evaluation: str = "replay", env: VecEnv | None = None, **changed: Any) -> Any:
    settings = SMALL | EVALUATIONS[evaluation] | OWN.get(algo, {}) | changed
    return ALGORITHMS[algo].load()("MlpPolicy", envs() if env is None else env, evaluation=evaluation, **settings)


# ---------------------------------------------------------------------- as functions


def test_what_is_forbidden_counts_nowhere() -> None:
    generator = torch.Generator().manual_seed(0)
    logits, q = (torch.randn(50, 4, generator=generator, dtype=torch.float64) for _ in range(2))
    masks = torch.rand(50, 4, generator=generator) < 0.5
    masks[:, 1] = True
    log_pi = forbid(logits, masks).log_softmax(-1)
    assert (log_pi.exp()[~masks] == 0).all()
    other = forbid(q, masks).log_softmax(-1)
    for i in range(50):
        kept = masks[i]
        reduced, its_other = logits[i, kept].log_softmax(-1), q[i, kept].log_softmax(-1)
        assert torch.allclose(entropy(log_pi)[i], entropy(reduced))
        assert torch.allclose(soft_value(q, log_pi, 0.3)[i], soft_value(q[i, kept], reduced, 0.3))
        assert torch.allclose(kl_divergence(log_pi, other)[i], kl_divergence(reduced, its_other))
        assert float(log_count(masks, Factors([4]))[i]) == pytest.approx(np.log(int(kept.sum())))


def test_the_behaviour_is_uniform_over_what_is_allowed() -> None:
    masks = torch.tensor([[True, False, True], [False, True, False]])
    found = epsilon_softmax(torch.tensor([[0.0, 9.0, 0.0], [5.0, 0.0, 5.0]]), 0.4, masks)
    np.testing.assert_allclose(found, [[0.5, 0.0, 0.5], [0.0, 1.0, 0.0]], rtol=1e-6)
    assert (found[~masks] == 0).all()
    explored = epsilon_softmax(torch.tensor([[FORBIDDEN / 2, 0.0, 0.0]]), 0.3, torch.tensor([[True, False, True]]))
    np.testing.assert_allclose(explored, [[0.15, 0.0, 0.85]], rtol=1e-6)


def test_the_probability_that_an_action_was_the_policys_own() -> None:
    log_pi = forbid(torch.zeros(1, 4), torch.tensor([[True, True, False, False]])).log_softmax(-1)
    masks = torch.tensor([[True, True, False, False]])
    found = own_probability(log_pi, torch.tensor([1]), 0.5, Factors([4]), masks)
    assert found.item() == pytest.approx(0.5)  # π and exploration are both uniform over two
    assert own_probability(log_pi, torch.tensor([1]), 0.5, Factors([4])).item() == pytest.approx(2 / 3)


@pytest.mark.parametrize("factors", [Factors([4]), Factors([3, 2])], ids=["single", "several"])
@pytest.mark.parametrize("name", ["softmax", "sticky"])
def test_a_forbidden_action_is_never_drawn_in_a_million(name: Any, factors: Factors) -> None:
    n, generator = 20_000, torch.Generator().manual_seed(0)
    behaviour = Behaviour(name, n, 0.3, 4.0, torch.Generator().manual_seed(1), factors)
    for _ in range(50):
        masks = torch.rand(n, factors.n_outputs, generator=generator) < 0.4
        for first, size in zip(factors.first, factors.sizes, strict=True):
            masks[torch.arange(n), first + torch.randint(size, (n,), generator=generator)] = True
        assert are_complete(masks, factors).all()
        logits = 30 * torch.randn(n, factors.n_outputs, generator=generator, dtype=torch.float64)
        drawn = behaviour.act(logits, masks)
        assert masks.gather(-1, factors.outputs_of(drawn).mT).all()


# ---------------------------------------------------------------------- as an algorithm


@pytest.mark.parametrize(
    ("algo", "own", "exact"),
    [
        ("staq", {"memory_size": 2}, {"memory_size": 2}),
        ("exact-pmd", {}, {}),
        ("ac-mproj", {"actor_steps": 600}, {}),
        ("ac-directopt", {"actor_steps": 600}, {}),
        ("ac-nokl", {"actor_steps": 1200}, {"kl_weight": 0.0}),
    ],
)
def test_the_whole_loop_is_tabular_policy_iteration_over_what_is_allowed(
    algo: str, own: dict[str, Any], exact: dict[str, Any]
) -> None:
    tau, eta, gamma = 0.3, 0.6, 0.6
    settings: dict[str, Any] = {
        "gamma": gamma,
        "kl_weight": eta,
        "ent_weight_init": tau * np.log(3),
        "ent_weight_final": tau * np.log(3),
        "reward_scale": 1.0,
        "epsilon": 0.5,
        "learning_rate": 0.01,
        "batch_size": 128,
        "buffer_size": 1200,
        "policy_update_interval": 600,
        "gradient_steps": 1200,
        "target_update_interval": 40,
        "policy_kwargs": {"net_arch": []},
    }
    model = made(algo, env=make_vec_env(lambda: ActionMasks(MaskedRing()), n_envs=20, seed=0), **settings | own)
    tabular = masked(Ring.as_mdp(gamma), ALLOWED)
    expected = run(tabular, Settings(**{"entropy_weight": tau, "kl_weight": eta} | exact), iterations=4)
    for log_pi in expected.log_pi[1:]:
        model.learn(600, reset_num_timesteps=False)
        found = model.action_probabilities(np.arange(4), ALLOWED)
        np.testing.assert_allclose(found, np.exp(log_pi), atol=0.01)
        assert (found[~ALLOWED] == 0).all()
        assert np.isneginf(model.logits(np.arange(4), ALLOWED)[~ALLOWED]).all()


@pytest.mark.parametrize("behaviour", ["softmax", "sticky"])
@pytest.mark.parametrize("evaluation", EVALUATIONS)
@pytest.mark.parametrize("kind", [MaskedRing, MaskedPair])
@pytest.mark.parametrize("algo", registry.ours())
def test_every_variant_keeps_to_what_is_allowed(
    algo: str, kind: type[gymnasium.Env], evaluation: str, behaviour: str
) -> None:
    """The environments raise at a forbidden action."""
    model = made(algo, evaluation, envs(kind), behaviour=behaviour).learn(600)
    assert all(torch.isfinite(w).all() for w in model.policy.q_net.weights.values())
    assert np.isfinite(model.policy_entropy)


@pytest.mark.slow
@pytest.mark.parametrize("evaluation", EVALUATIONS)
@pytest.mark.parametrize("algo", registry.ours())
def test_in_twenty_thousand_steps_too(algo: str, evaluation: str) -> None:
    made(algo, evaluation, envs(MaskedPair, 8)).learn(20_000)


def test_masks_are_off_where_that_is_wanted() -> None:
    with pytest.raises(AssertionError, match="is forbidden in"):
        made("staq", masks="off").learn(400)


@pytest.mark.parametrize("evaluation", EVALUATIONS)
def test_all_allowed_is_as_good_as_no_masks(evaluation: str) -> None:
    class Open(Ring):
        def action_masks(self) -> np.ndarray:
            return np.ones(3, dtype=np.int8)

    one, other = (made("staq", evaluation, env).learn(800) for env in (envs(Open), DummyVecEnv([Ring] * 4)))
    np.testing.assert_allclose(one.logits(np.arange(4)), other.logits(np.arange(4)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("evaluation", EVALUATIONS)
def test_a_last_state_that_is_not_known_is_left_out(evaluation: str) -> None:
    """Without the wrapper nobody can say what was allowed where an episode was cut."""
    env = DummyVecEnv([MaskedRing] * 4)
    with pytest.warns(UserWarning, match="step 76.*staq.ActionMasks"):
        model = made("staq", evaluation, env).learn(200)
    if evaluation == "replay":
        next_masks = model.experience.next_masks[:200]
        unknown = ~next_masks.any(-1)
        assert unknown.nonzero().squeeze(-1).tolist() == [76, 77, 78, 79, 156, 157, 158, 159]
    else:
        known = model.policy_evaluation.known_targets(model.experience)
        assert (~known).nonzero().squeeze(-1).tolist() == [76, 77, 78, 79, 156, 157, 158, 159]


@pytest.mark.parametrize("evaluation", EVALUATIONS)
def test_what_is_left_out_trains_nothing(evaluation: str) -> None:
    """Rewards of the steps that are not known could be anything."""

    class Extreme(MaskedRing):
        def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
            state, reward, terminated, truncated, info = super().step(action)
            return state, reward + 1000.0 * truncated * self.extreme, terminated, truncated, info

        extreme = 0.0

    class More(Extreme):
        extreme = 1.0

    found = []
    for kind in (Extreme, More):
        with pytest.warns(UserWarning, match="is not known"):
            model = made("staq", evaluation, DummyVecEnv([kind] * 4)).learn(400)
        found.append(model.logits(np.arange(4)))
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("kind", [MaskedRing, MaskedPair])
@pytest.mark.parametrize("evaluation", EVALUATIONS)
def test_a_resumed_run_is_the_same(evaluation: str, kind: type[gymnasium.Env], tmp_path: Path) -> None:
    name = f"{kind.__name__}-v0"
    gymnasium.register(name, kind)
    try:

        def fresh() -> Any:
            return made("staq", evaluation, DummyVecEnv([lambda: ActionMasks(gymnasium.make(name))] * 4))

        whole = fresh().learn(800)
        fresh().learn(800, callback=[Checkpoints(tmp_path, seconds=0.0), StopAt(501)])
        resumed = resume(fresh(), tmp_path)
        assert_identical(whole, resumed.learn(400, reset_num_timesteps=False))
    finally:
        del gymnasium.registry[name]


def test_an_export_keeps_to_masks(tmp_path: Path) -> None:
    model = made("staq").learn(400)
    policy, description = load_policy(model.export(tmp_path / "policy"))
    assert description["masked"]
    assert policy.masked
    states = np.arange(4)
    for deterministic in (True, False):
        actions, _ = policy.predict(states, deterministic=deterministic, action_masks=ALLOWED)
        assert ALLOWED[states, actions].all()
        assert policy.predict(states[3], deterministic=deterministic, action_masks=ALLOWED[3])[0] == 0
    np.testing.assert_allclose(
        policy.action_probabilities(states, ALLOWED), model.action_probabilities(states, ALLOWED)
    )


def test_environments_in_other_processes() -> None:
    env = SubprocVecEnv([lambda: ActionMasks(MaskedRing())] * 2)
    made("staq", env=env).learn(200)
    env.close()


def test_contribs_evaluation_takes_it() -> None:
    contrib = pytest.importorskip("sb3_contrib.common.maskable.evaluation")
    model = made("staq").learn(400)
    mean, _ = contrib.evaluate_policy(model, envs(), n_eval_episodes=4, use_masking=True, warn=False)
    assert np.isfinite(mean)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Discrete", "MultiDiscrete", "MultiBinary"])
def test_contribs_environments_are_solved(kind: str, tmp_path: Path) -> None:
    """As in sb3-contrib's documentation and tests: sizes, γ and threshold are theirs.

    So are the steps: MaskablePPO's learn(5000) ends its third rollout, after 6,144.
    """
    contrib = pytest.importorskip("sb3_contrib.common.envs")
    maskable = pytest.importorskip("sb3_contrib.common.maskable.evaluation")
    get_action_masks = pytest.importorskip("sb3_contrib.common.maskable.utils").get_action_masks
    size = {"Discrete": {"dim": 80}, "MultiDiscrete": {"dims": [2, 3]}, "MultiBinary": {"dims": 3}}[kind]
    forbidden = 60 if kind == "Discrete" else 1
    env = getattr(contrib, f"InvalidActionEnv{kind}")(**size, n_invalid_actions=forbidden)
    with pytest.warns(match="last state is not known"):
        model = StaQ("MlpPolicy", env, evaluation="lambda", gamma=0.4, seed=32).learn(6144)
    maskable.evaluate_policy(model, env, n_eval_episodes=20, reward_threshold=90, warn=False)
    model.save(tmp_path / "masked")
    model, (obs, _) = StaQ.load(tmp_path / "masked"), env.reset()
    for _ in range(20):
        masks = get_action_masks(env)
        action, _ = model.predict(obs, action_masks=masks)
        obs, *_ = env.step(action)


# ---------------------------------------------------------------------- bad input


class Wrong(MaskedRing):
    mask: Any = None

    def action_masks(self) -> Any:
        return self.mask


class Hiding(gymnasium.Env[int, int]):
    """A wrapper that is none of Gymnasium's."""

    observation_space, action_space = Ring.observation_space, Ring.action_space

    def __init__(self) -> None:
        self.env = MaskedRing()

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        return self.env.reset(seed=seed)


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        ([False, False, False], r"Environment 0 returned an action mask at step 0 that allows nothing.*\[0, 0, 0\]"),
        ([True, True], r"Environment 0 .* of shape \(2,\), but there are 3 choices"),
        ([[True, True, True]], r"of shape \(1, 3\)"),
        ([0.5, 1.0, 1.0], "not made of True and False"),
        (["a", "b", "c"], "not made of True and False"),
    ],
)
def test_a_mask_that_no_policy_can_follow(mask: Any, message: str) -> None:
    Wrong.mask = mask
    with pytest.raises(ValueError, match=message):
        made("staq", env=DummyVecEnv([Wrong] * 2)).learn(200)


def test_masks_in_some_environments() -> None:
    with pytest.raises(ValueError, match="Environment 1 offers action_masks.* environment 0 does not"):
        made("staq", env=DummyVecEnv([Ring, MaskedRing])).learn(200)


def test_a_wrapper_that_hides_them() -> None:
    with pytest.raises(ValueError, match="Environment 0, .*Hiding.* under a wrapper that hides it"):
        made("staq", env=DummyVecEnv([Hiding] * 2)).learn(200)


def test_masks_that_are_required() -> None:
    with pytest.raises(ValueError, match="masks='required', but the environments have no action_masks"):
        made("staq", env=DummyVecEnv([Ring] * 2), masks="required").learn(200)
    with pytest.raises(ValueError, match="masks='sometimes'"):
        made("staq", masks="sometimes")


def test_masks_in_the_info() -> None:
    class Info(Ring):
        def reset(self, **options: Any) -> tuple[int, dict[str, Any]]:
            state, info = super().reset(**options)
            return state, info | {"action_mask": ALLOWED[state]}

        def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
            state, reward, terminated, truncated, info = super().step(action)
            return state, reward, terminated, truncated, info | {"action_mask": ALLOWED[state].astype(np.int8)}

    assert made("staq", env=envs(Info)).learn(200).policy.masked
    with pytest.warns(UserWarning, match="leave an 'action_mask' in their info, which is not used"):
        assert not made("staq", env=DummyVecEnv([Info] * 2)).learn(200).policy.masked
    with pytest.raises(ValueError, match="wrap each in staq.ActionMasks, which takes them from info"):
        made("staq", env=DummyVecEnv([Info] * 2), masks="required").learn(200)
    with pytest.raises(ValueError, match="offers no masks"):
        envs(Ring).reset()


def test_masks_given_to_predict() -> None:
    model = made("staq").learn(200)
    with pytest.raises(ValueError, match=r"action_masks of shape \(4, 2\) for 3 choices"):
        model.predict(np.arange(4), action_masks=np.ones((4, 2)))
    with pytest.raises(ValueError, match="action_masks allow nothing in row 1"):
        model.predict(np.arange(2), action_masks=np.array([[1, 0, 0], [0, 0, 0]]))


def test_it_is_said_whether_masks_are_used(capsys: pytest.CaptureFixture[str]) -> None:
    made("staq", verbose=1).learn(200)
    assert "Actions are masked" in capsys.readouterr().out
    made("staq", verbose=1, env=DummyVecEnv([Ring] * 2)).learn(200)
    assert "No action masks" in capsys.readouterr().out
