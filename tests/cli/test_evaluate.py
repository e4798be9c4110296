"""``staq eval``: runs, exports, folders of parameters and zips."""

from __future__ import annotations

from pathlib import Path

import pytest

from staq.cli import main as cli
from staq.cli.main import main
from staq.envs.make import make_envs
from staq.registry import ALGORITHMS
from tests.conftest import small_model


def test_eval_takes_a_run_an_export_and_a_zip(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["run"], ["run", "--best"], ["run/model"]):
        assert cli.main(["eval", *arguments, "--episodes", "3"]) == 0
        out = capsys.readouterr().out
        assert "greedy" in out
        assert "stochastic" in out
    small_model().learn(200).save("model.zip")
    assert cli.main(["eval", "model.zip", "--episodes", "2"]) == 1
    assert "name it with --env" in capsys.readouterr().err
    assert cli.main(["eval", "model.zip", "--episodes", "2", "--env", "CartPole-v1"]) == 0


@pytest.mark.parametrize("algo", ["ac-mproj", "natgrad", "m-dqn", "ppo"])
def test_a_zip_of_any_algorithm_is_evaluated(algo: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Ours needs no trust, SB3's is pickled."""
    path = tmp_path / "model.zip"
    ALGORITHMS[algo].load()("MlpPolicy", make_envs("CartPole-v1", 1), policy_kwargs={"net_arch": [8]}).save(path)
    evaluated, trusting = ["eval", str(path), "--env", "CartPole-v1", "--episodes", "1"], []
    if not ALGORITHMS[algo].ours:
        trusting = ["--trust"]
        assert main(evaluated) == 1
        assert "--trust" in capsys.readouterr().err
    assert main([*evaluated, *trusting]) == 0
    assert "greedy" in capsys.readouterr().out


def test_a_folder_of_parameters_is_evaluated_as_its_run_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    short = ["--timesteps", "2048", "--eval-every", "2048", "--eval-episodes", "1", "--out", str(run)]
    assert main(["train", "CartPole-v1", "--algo", "ppo", *short]) == 0
    capsys.readouterr()
    said = set()
    for path in (run, run / "model", run / "best_model"):
        assert main(["eval", str(path), "--episodes", "1"]) == 0
        said.add(capsys.readouterr().out)
    assert len(said) == 1
    assert main(["train", "--resume", str(run), "--timesteps", "1000"]) == 1
    assert "a run can only be extended" in capsys.readouterr().err
