"""The command line, in this process: from training to a video, and how it fails."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gymnasium
import imageio.v2 as imageio
import numpy as np
import pytest

from staq import load_policy
from staq.cli import main as cli
from staq.cli.runs import Config
from staq.storage.export import WEIGHTS
from tests.cli.conftest import train


class Reach(gymnasium.Env[np.ndarray, np.ndarray]):
    """A plane on which a point is to be pointed at, in five steps."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Box(-1, 1, (2,))

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.goal, self.steps = self.np_random.uniform(-1, 1, 2).astype(np.float32), 0
        return self.goal, {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        self.steps += 1
        return self.goal, -float(np.abs(action - self.goal).sum()), self.steps == 5, False, {}

    def render(self) -> Any:
        return np.full((64, 64, 3), 128, dtype=np.uint8)


@pytest.mark.parametrize("actions", ["factored", "boundary"])
def test_continuous_actions_through_the_whole_command_line(
    actions: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gymnasium.register("Reach-v0", entry_point=Reach)
    try:
        assert train("whole", "--actions", actions, env="Reach-v0") == 0
        assert train("run", "--actions", actions, env="Reach-v0", steps=400) == 0
        assert cli.main(["train", "--resume", "run", "--timesteps", "1000"]) == 0
        assert (tmp_path / "run/model" / WEIGHTS).read_bytes() == (tmp_path / "whole/model" / WEIGHTS).read_bytes()
        assert cli.main(["eval", "run", "--episodes", "2"]) == 0
        assert cli.main(["watch", "run", "--out", "video.gif"]) == 0
    finally:
        del gymnasium.registry["Reach-v0"]
    assert load_policy("run/model")[0].codec.factors.sizes == ((7, 7) if actions == "factored" else (5,))
    assert Config.load(Path("run")).actions == actions
    with imageio.get_reader("video.gif") as reader:
        frame = reader.get_data(0)
    orange = (frame[..., 0] > 180) & (frame[..., 2] < 60)
    assert orange[:, 320:].any()  # what was chosen


def test_info(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["info"]) == 0
    out = capsys.readouterr().out
    assert "preset minatar" in out
    assert "torch" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train"], "Name an environment"),
        (["train", "CartPole-v1", "--memory-sise", "3"], "Did you mean 'memory_size'"),
        (["train", "CartPole-v1", "--memory-size", "0"], "memory_size=0"),
        (["train", "CartPole-v1", "--learning-starts", "3"], "no meaning"),
        (["train", "CartPole-v1", "stray"], "'stray'"),
        (["train", "CartPoll-v1"], "environment 'CartPoll-v1' cannot be made.*CartPole"),
        (["train", "Cart Pole"], "'Cart Pole' cannot be made"),
        (["train", "./games.py"], "'./games.py' cannot be made.*module:Name-v0"),
        (["train", "games.py:Mine-v0"], "without .py: games:Mine-v0"),
        (["train", "./my/games.py:Mine-v0"], "without .py: my.games:Mine-v0"),
        (["train", "CartPole-v1", "--out", "."], r"overwritten: name another --out\.$"),
        (["eval", "."], "is neither a run nor an exported policy"),
        (["train", "CartPole-v1", "--device", "gpu"], "must be auto, cpu or cuda"),
        (["train", "CartPole-v1", "--device", "mps"], "must be auto, cpu or cuda"),
        (["train", "CartPole-v1", "--gamma", "inf"], "gamma=inf: it must be a number between 0 and 1"),
        (["train", "CartPole-v1", "--reward-scale", "inf"], "reward_scale=inf: it must be a positive number"),
        (["train", "CartPole-v1", "--kl-weight", "1e20"], r"kl_weight=1e\+20 is more than 1e\+12 times the entropy"),
        (["train", "CartPole-v1", "--policy-kwargs", "{activation_fn='Tan'}"], "'Tan' is no layer of torch.nn"),
        (["eval", "x", "--memory-size", "3"], "unrecognised option '--memory-size'"),
        (["train", "CartPole-v1", "--actions", "factored"], r"finite actions \(Discrete\(2\)\): leave out"),
        (["train", "Pendulum-v1", "--algo", "dqn"], "dqn needs discrete actions.*--actions boundary"),
        (["train", "Pendulum-v1", "--algo", "ppo", "--actions", "factored"], "ppo has no factored actions"),
        (["train", "Pendulum-v1", "--n-atoms", "1"], "n_atoms=1: it must be a whole number of at least 2"),
        (["train", "CartPole-v1", "--n-envs", "48"], "use 4992 or 5040"),
        (["train", "CartPole-v1", "--reward-scale", "1e30"], r"reward_scale=1e\+30: it must be"),
        (["train", "CartPole-v1", "--buffer-size", "9"], "too small for a step of 50 environments: raise the one"),
        (["train", "--resume", "nowhere"], "not a run"),
        (["train", "CartPole-v1", "--preset", "clasic"], "Did you mean 'classic'"),
        (["eval", "nowhere"], "does not exist"),
        (["plot", "nowhere"], "not a run"),
    ],
)
def test_failures_are_one_clear_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments) == 1
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("staq: ")
    assert re.search(message, error), error
