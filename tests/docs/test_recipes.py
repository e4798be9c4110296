"""The recipes, run as they stand in the documentation."""

from __future__ import annotations

import numpy as np
import pytest

from staq import load_policy
from staq.cli.main import main
from staq.registry import ALGORITHMS, EVALUATIONS
from tests.docs.blocks import BLOCK, DOCS, run_blocks

UPDATE, EVALUATION = (DOCS / "recipes.md").read_text().split("## ")[1:]


def test_your_own_policy_update(capsys: pytest.CaptureFixture[str]) -> None:
    """One file and a line: then it trains, resumes, is evaluated, plotted and exported like any other."""
    code = next(code for _, file, code in BLOCK.findall(UPDATE) if file == "my_update.py")
    body = code[code.index("class WeightAverage") : code.index("class AveragePMD")]
    assert len([line for line in body.splitlines() if line.strip()]) <= 30
    try:
        run_blocks(UPDATE, "python")
        assert "average on CartPole-v1" in capsys.readouterr().out
        assert main(["train", "--resume", "runs/average", "--timesteps", "3000"]) == 0
        assert main(["eval", "runs/average", "--episodes", "2"]) == 0
        assert main(["plot", "runs/average", "--out", "curve.png"]) == 0
        assert "weight average, 1 seed" in capsys.readouterr().out
        with pytest.raises(SystemExit):
            main(["train", "--help-all"])
        assert "how much of the critics' weights enters the average" in " ".join(capsys.readouterr().out.split())
        policy, _ = load_policy("runs/average/model")
        assert np.ptp(policy.action_probabilities(np.array([0.1, 0.1, 0.2, 0.3], dtype=np.float32))) > 0.01
    finally:
        ALGORITHMS.pop("average", None)


def test_your_own_policy_evaluation() -> None:
    try:
        names = run_blocks(EVALUATION, "python")
        model = names["model"]
        assert type(model.policy_evaluation).__name__ == "HuberRegression"  # type: ignore[attr-defined]
        assert model.huber_delta == 20.0  # type: ignore[attr-defined]
        with pytest.raises(ValueError, match="huber_delta=0: it must be a positive number"):
            names["StaQ"]("MlpPolicy", "CartPole-v1", evaluation="huber", huber_delta=0)  # type: ignore[operator]
        with pytest.raises(ValueError, match=r"no evaluation 'hubber'. Did you mean 'huber'\?"):
            names["StaQ"]("MlpPolicy", "CartPole-v1", evaluation="hubber")  # type: ignore[operator]
        with pytest.raises(TypeError, match="'huber_delta' belongs to evaluation='huber'"):
            names["StaQ"]("MlpPolicy", "CartPole-v1", huber_delta=1.0)  # type: ignore[operator]
    finally:
        EVALUATIONS.pop("huber", None)
