"""The loop without PyTorch: it imports neither that nor staq, and its CartPole is Gymnasium's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from staq.cli import main as cli
from tests.conftest import lambda_model

pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")
LOOP = Path(__file__).parents[2] / "examples" / "onnx_loop.py"
WITHOUT = """
import runpy, sys
for name in ("torch", "staq", "gymnasium", "stable_baselines3", "onnx"):
    sys.modules[name] = None
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_it_needs_onnxruntime_and_numpy_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lambda_model().learn(400).export("policy")
    assert cli.main("condense policy --episodes 2 --onnx --env CartPole-v1 --out small".split()) == 0
    command = [sys.executable, "-c", WITHOUT, str(LOOP), "small/networks-1.onnx"]
    ran = subprocess.run(command, cwd=tmp_path, env={}, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("10 episodes, mean return ")


def test_its_cartpole_is_gymnasiums() -> None:
    from examples.onnx_loop import CartPole

    theirs, ours, rng = gymnasium.make("CartPole-v1"), CartPole(), np.random.default_rng(0)
    for episode in range(20):
        obs, _ = theirs.reset(seed=episode)
        np.testing.assert_allclose(ours.reset(rng), np.zeros(4), atol=0.05)
        ours.state, ended = np.array(theirs.unwrapped.state, dtype=np.float64), False  # type: ignore[attr-defined]
        while not ended:
            action = int(obs[2] + 0.3 * obs[3] > 0) if episode % 2 else int(rng.integers(2))
            obs, reward, terminated, truncated, _ = theirs.step(action)
            seen, its_reward, ended = ours.step(action)
            np.testing.assert_allclose(seen, obs, rtol=1e-5, atol=1e-6)
            assert (its_reward, ended) == (reward, terminated or truncated)
