"""Policies from files of others: nothing is imported or unpickled unasked, and boundaries are found out."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from stable_baselines3 import DQN
from stable_baselines3.common.env_util import make_vec_env

from staq import BoundaryActions, StaQ
from staq.cli import main as cli
from staq.storage.export import DESCRIPTION


def test_a_zip_does_not_say_that_its_actions_are_boundaries(capsys: pytest.CaptureFixture[str]) -> None:
    env = make_vec_env("Pendulum-v1", 2, wrapper_class=BoundaryActions)
    StaQ("MlpPolicy", env, policy_kwargs={"net_arch": [8]}, device="cpu").save("boundary.zip")
    assert cli.main("eval boundary.zip --env Pendulum-v1 --episodes 1".split()) == 0
    assert "Pendulum-v1  greedy" in capsys.readouterr().out
    assert cli.main("eval boundary.zip --env CartPole-v1 --episodes 1".split()) == 1
    assert "acts in Discrete(3), and CartPole-v1 takes Discrete(2)" in capsys.readouterr().err


def test_a_file_does_not_say_which_module_is_imported(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Gymnasium imports the module in front of a colon, and an export that was downloaded may name any."""
    shutil.copytree(run / "model", "export")
    description, config = Path("export", DESCRIPTION), run / "config.json"
    for file, folder in ((description, "export"), (config, "run"), (config, "run/model")):
        named = file.read_text().replace('"CartPole-v1"', '"antigravity:CartPole-v1"')
        file.write_text(named)
        assert cli.main(["eval", folder]) == 1
        assert "runs the code of a module" in capsys.readouterr().err
        assert "antigravity" not in sys.modules
        assert cli.main(["eval", folder, "--env", "CartPole-v1", "--episodes", "2"]) == 0
        file.write_text(named.replace("antigravity:", "gymnasium:"))
        assert cli.main(["eval", folder, "--trust", "--episodes", "2"]) == 0
        file.write_text(named.replace("antigravity:", ""))


def test_a_foreign_zip_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    Path("foreign.zip").write_text("not a model")
    for trust in ([], ["--trust"]):
        assert cli.main(["eval", "foreign.zip", *trust, "--env", "CartPole-v1"]) == 1
        assert capsys.readouterr().err.count("foreign.zip is no zip of a model") == 1


def test_a_pickled_zip_needs_trust(capsys: pytest.CaptureFixture[str]) -> None:
    DQN("MlpPolicy", "CartPole-v1", device="cpu").save("dqn.zip")
    StaQ("MlpPolicy", "CartPole-v1", learning_rate=lambda _: 1e-3, device="cpu").save("staq.zip")
    for path, message in (("dqn.zip", "load it with DQN.load"), ("staq.zip", "--trust")):
        assert cli.main(["eval", path, "--env", "CartPole-v1", "--episodes", "1"]) == 1
        assert message in capsys.readouterr().err
        assert cli.main(["eval", path, "--trust", "--env", "CartPole-v1", "--episodes", "1"]) == 0
