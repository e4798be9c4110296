"""Model cards, and the way to the hub and back, by a stand-in for its server."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from staq import load_policy
from staq.cli import main as cli
from staq.cli.card import interval
from tests.storage.hub_stand_in import hub_stand_in

hub = pytest.importorskip("huggingface_hub")
LOAD = """
import numpy, staq
policy, description = staq.load_policy("hf:user/cartpole")
print(policy.logits(numpy.array([0.1, 0.2, 0.3, 0.4], dtype=numpy.float32)).tolist(), description["environment"])
staq.load_policy("hf:user/nothing")
"""


def test_a_card_goes_to_the_hub_and_its_policy_comes_back(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, "other")
    asked: list[str] = []
    with hub_stand_in(asked) as (address, repositories):
        environment = os.environ | {"HF_ENDPOINT": address, "HF_HOME": str(tmp_path / "hf"), "HF_TOKEN": "of nobody"}
        environment |= {"PYTHONPATH": ":".join(sys.path), "HF_HUB_DISABLE_PROGRESS_BARS": "1"}

        def ran(*command: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True)

        pushed = ran(*"-m staq.cli.main card run --episodes 4 --seeds other --push user/cartpole".split())
        assert pushed.returncode == 0, pushed.stderr
        assert pushed.stdout.splitlines()[-1] == f"{address}/user/cartpole"
        files = {path.name for path in (tmp_path / "card").iterdir()}
        assert {
            "README.md",
            "policy.json",
            "policy.safetensors",
            "replay.mp4",
            "config.json",
            "evaluations.csv",
        } <= files
        assert {name: len(content) for name, content in repositories["user/cartpole"].items()} == {
            path.name: path.stat().st_size for path in (tmp_path / "card").iterdir()
        }
        repositories["user/cartpole"]["model.pkl"] = b"not asked for"
        asked.clear()
        loaded = ran("-c", LOAD)
        fetched = {path.rsplit("/", 1)[-1] for path in asked if "/resolve/" in path}
        assert fetched == {"policy.json", "policy.safetensors"}
    assert "FileNotFoundError: hf:user/nothing is not on the hub" in loaded.stderr
    policy, _ = load_policy(run / "model")
    expected = policy.logits(np.array([0.1, 0.2, 0.3, 0.4], dtype=np.float32)).tolist()
    assert loaded.stdout.strip() == f"{expected} CartPole-v1"
    shutil.rmtree(tmp_path / "hf")

    text = (tmp_path / "card" / "README.md").read_text()
    data = hub.ModelCard(text).data
    assert data.library_name == "staq"
    assert data.eval_results[0].dataset_name == "CartPole-v1"
    assert 'staq.load_policy("hf:user/cartpole")' in text
    assert "Over 2 seeds" in text
    assert '"policy_update_interval": 200' in text


def test_intervals_are_students() -> None:
    assert interval(np.array([1.0, 3.0])) == "2.0 ± 12.7"  # t = 12.706 with one degree of freedom, deviation √2
    assert interval(np.array([5.0])) == "5.0"


def test_bad_input(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(run, "narrow")
    config = Path("narrow/config.json")
    config.write_text(config.read_text().replace('"net_arch": [\n        16', '"net_arch": [\n        8'))
    for arguments, message in (
        ("--push cartpole", "must be USER/REPO"),
        ("--out run", "nothing is overwritten"),
        ("--seeds narrow", "differs from run in more than its seed"),
    ):
        assert cli.main(["card", "run", "--episodes", "2", "--no-film", *arguments.split()]) == 1
        assert message in capsys.readouterr().err


def test_a_name_on_the_hub_is_checked() -> None:
    with pytest.raises(ValueError, match="must be USER/REPO"):
        load_policy("hf:../../etc")
