"""Arguments that are refused or warned about, by name."""

from __future__ import annotations

from typing import Any

import pytest

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
        small_model(exploration_fraction=0.1, learning_starts=100)
    assert len(caught) == 1
    with pytest.warns(UserWarning, match="have no meaning"):
        small_model(**dict.fromkeys(NO_MEANING_HERE, 1))


def test_an_unknown_argument_names_the_nearest() -> None:
    with pytest.raises(TypeError, match="'memory_sise'. Did you mean 'memory_size'"):
        small_model(memory_sise=3)
