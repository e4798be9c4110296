"""Arguments that are refused or warned about, by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from stable_baselines3 import HerReplayBuffer

from staq import StaQ
from staq.hyperparameters import NO_MEANING_HERE
from tests.conftest import small_model


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"memory_size": 0}, "memory_size=0.*at least 1, or None"),
        ({"ent_weight_final": 0.0}, "ent_weight_final=0.0.*positive"),
        ({"ent_weight_init": -1.0}, "ent_weight_init=-1.0.*positive"),
        ({"kl_weight": -1.0}, "kl_weight=-1.0"),
        ({"epsilon": 1.5}, "epsilon=1.5.*between 0 and 1"),
        ({"behaviour": "stick"}, "behaviour='stick'.*'softmax' or 'sticky'"),
        ({"gamma": 1.1}, "gamma=1.1"),
        ({"target_action": "max"}, "target_action='max'"),
        ({"buffer_size": 2}, "buffer_size=2 is too small for a step of 4"),
        ({"buffer_size": 31}, "buffer_size=31 is less than batch_size=32"),
        ({"reward_scale": 1e30}, r"reward_scale=1e\+30.*up to 1e\+09"),
        ({"policy_kwargs": {"net_arch": [0]}}, r"net_arch=\[0\].*at least 1"),
        ({"policy_kwargs": {"net_arch": "big"}}, "net_arch='big'.*list of whole numbers"),
        ({"device": "cuda"}, "device='cuda': PyTorch finds no GPU"),
        ({"device": "gpu"}, "device='gpu': it must be auto, cpu or cuda"),
        ({"buffer_size": "big"}, "buffer_size='big'.*whole number"),
        ({"memory_size": 2.5}, "memory_size=2.5.*whole number"),
        ({"learning_rate": "fast"}, "learning_rate='fast'.*or a schedule"),
        ({"kl_weight": None}, "kl_weight=None"),
        ({"policy_update_interval": 202}, "202 is not a multiple of the 4 environments: use 200 or 204"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small_model(**arguments)


def test_arguments_of_dqn_are_accepted_with_one_warning() -> None:
    with pytest.warns(UserWarning, match="exploration_fraction.*learning_starts") as caught:
        small_model(exploration_fraction=0.1, learning_starts=201)
    assert len(caught) == 1
    with pytest.warns(UserWarning, match="have no meaning"):
        small_model(**dict.fromkeys(NO_MEANING_HERE, 1))


def test_arguments_of_dqn_that_ask_for_what_happens_anyway_are_no_warning() -> None:
    """Warnings are errors here."""
    anyway = {"learning_starts": 200, "tau": 1.0, "optimize_memory_usage": False, "n_steps": 1}
    small_model(**anyway, replay_buffer_class=None, replay_buffer_kwargs={"handle_timeout_termination": True})


def test_hindsight_replay_is_refused() -> None:
    """Without it training would go on, and reach no goal."""
    with pytest.raises(ValueError, match="HerReplayBuffer: StaQ has no hindsight replay"):
        small_model(replay_buffer_class=HerReplayBuffer)


def test_batches_are_no_larger_than_a_small_replay() -> None:
    assert StaQ("MlpPolicy", "CartPole-v1", buffer_size=100).batch_size == 100
    assert StaQ("MlpPolicy", "CartPole-v1").batch_size == 256


@pytest.mark.parametrize(
    ("policy", "env", "message"),
    [
        ("MlpPolicy", None, "env=None: name an environment"),
        ("MlpPolicy", 5, "env=5: it must be an environment"),
        (3, "CartPole-v1", "policy=3: it must be 'MlpPolicy', 'CnnPolicy', 'MultiInputPolicy' or a subclass"),
        ("MlpPolciy", "CartPole-v1", "policy='MlpPolciy'"),
        (dict, "CartPole-v1", "policy=<class 'dict'>"),
    ],
)
def test_a_policy_or_environment_that_is_none_is_named(policy: Any, env: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        StaQ(policy, env)


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_a_policy_is_not_asked_for_what_is_no_number(number: float) -> None:
    model, obs = small_model(), np.array([[0, number, 0, 0]], dtype=np.float32)
    for ask in (model.predict, model.logits, model.action_probabilities, model.q_values, model.policy.predict):
        with pytest.raises(ValueError, match="The observation is not finite"):
            ask(obs)


def test_a_policy_is_not_asked_for_all_that_reset_returns() -> None:
    """``model.predict(env.reset())`` is an error that says what to do in SB3 as well."""
    model = small_model()
    for ask in (model.predict, model.logits, model.action_probabilities, model.q_values, model.policy.predict):
        with pytest.raises(ValueError, match=r"obs, info = env.reset\(\)"):
            ask((np.zeros(4, dtype=np.float32), {}))


def test_an_unknown_argument_names_the_nearest() -> None:
    with pytest.raises(TypeError, match="'memory_sise'. Did you mean 'memory_size'"):
        small_model(memory_sise=3)
