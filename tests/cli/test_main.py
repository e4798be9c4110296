"""The command line, in this process: what it leaves behind, and how it fails."""

from __future__ import annotations

import csv
import ctypes.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import imageio.v2 as imageio
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env

from staq import BoundaryActions, StaQ, load_policy
from staq.baselines.sb3_policy import SB3Policy
from staq.cli import main as cli
from staq.cli import runs
from staq.cli import video as watch
from staq.cli.plot import kind_of, labels_of
from staq.cli.rollouts import read_rows
from staq.cli.runs import Config
from staq.cli.train import overrides
from staq.envs.make import make_envs
from staq.storage.atomic_files import locked
from staq.storage.export import DESCRIPTION, WEIGHTS
from staq.tabular import averaging
from staq.tabular.grids import pendulum
from tests.conftest import Endless, small_model

FAST = (
    "--policy-update-interval 200 --batch-size 32 --buffer-size 500 --memory-size 3 --target-update-interval 50 "
    "--policy-kwargs {net_arch=[16]} --n-envs 4 --eval-episodes 2 --threads 1 --seed 5"
).split()


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def train(out: str, *arguments: str, env: str = "CartPole-v1", steps: int = 1000) -> int:
    options = ["train", env, "--timesteps", str(steps), "--eval-every", "400", "--out", out]
    return cli.main([*options, *FAST, *arguments])


@pytest.fixture
def run(tmp_path: Path) -> Path:
    assert train("run") == 0
    return tmp_path / "run"


def table(path: Path) -> list[dict[str, str]]:
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    return list(csv.DictReader(lines))


def steady(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    """Without what depends on the clock."""
    clocks = ("time/fps", "time/time_elapsed", "t", "seconds")
    return [{k: v for k, v in row.items() if k not in clocks and not k.endswith("_seconds")} for row in rows]


def test_a_run_leaves_everything_behind(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = {path.name for path in run.iterdir()}
    files = "config.json progress.csv monitor.csv evaluations.csv evaluations.npz learning_curve.png"
    assert names == {*files.split(), "checkpoints", "model", "best_model", "tensorboard"}
    config = json.loads((run / "config.json").read_text())
    assert config["hyperparameters"]["memory_size"] == 3
    assert config["made_by"]["torch"]
    assert config["command"].startswith("staq train CartPole-v1 --timesteps 1000 --eval-every 400 --out run")
    rows = read_rows(run)
    assert [(row.timesteps, row.mode) for row in rows[:2]] == [(400, "greedy"), (400, "stochastic")]
    assert [row.timesteps for row in rows] == [400, 400, 800, 800]
    with np.load(run / "evaluations.npz") as saved:
        assert saved["timesteps"].tolist() == [400, 800]
        assert saved["results"].shape == (2, 2)
        assert saved["results"][0].mean() == pytest.approx(rows[0].mean)
    progress = table(run / "progress.csv")
    assert [int(row["time/total_timesteps"]) for row in progress] == [200, 400, 600, 800, 1000]
    assert any((run / "tensorboard").iterdir())
    assert len(table(run / "monitor.csv")) > 10


def test_the_preset_is_printed_with_what_was_overridden(capsys: pytest.CaptureFixture[str]) -> None:
    assert train("run", env="MinAtar/Breakout-v1", steps=200) == 0
    out = capsys.readouterr().out
    assert "preset minatar (Paper, Table 2, MinAtar)" in out
    assert "reward_scale             100.0\n" in out
    assert "memory_size              3\n" in out
    assert "kl_weight                20.0   (default)" in out


@pytest.mark.parametrize("cut_after", [200, 600])
def test_a_resumed_run_has_the_same_files(run: Path, tmp_path: Path, cut_after: int, monkeypatch: Any) -> None:
    """Interrupted by a signal in the middle of an iteration, resumed by the command line."""
    step = gymnasium.make("CartPole-v1").unwrapped.__class__.step
    calls = 0

    def interrupting(self: Any, action: Any) -> Any:
        nonlocal calls
        calls += self.spec.id == "CartPole-v1"
        if calls == cut_after + 50:
            os.kill(os.getpid(), signal.SIGINT)
        return step(self, action)

    monkeypatch.setattr("gymnasium.envs.classic_control.CartPoleEnv.step", interrupting)
    assert train("other") == 0
    assert not (tmp_path / "other" / "model").exists()
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert cli.main(["train", "--resume", "other"]) == 0
    other = tmp_path / "other"
    for name in ("progress.csv", "monitor.csv", "evaluations.csv"):
        assert steady(table(other / name)) == steady(table(run / name)), name
    weights = "model/policy.safetensors"
    assert (other / weights).read_bytes() == (run / weights).read_bytes()


@pytest.mark.parametrize("at", [200, 400, 800])
def test_rows_logged_after_the_last_checkpoint_are_not_doubled(run: Path, tmp_path: Path, at: int) -> None:
    """A kill between an evaluation and its checkpoint: the files say more than the checkpoint knows."""
    assert train("killed", steps=at) == 0  # its last checkpoint is before the first evaluation, or at one
    for name in ("progress.csv", "monitor.csv", "evaluations.csv", "evaluations.npz"):
        shutil.copy(run / name, Path("killed") / name)
    assert cli.main(["train", "--resume", "killed", "--timesteps", "1000"]) == 0
    for name in ("progress.csv", "monitor.csv", "evaluations.csv"):
        assert steady(table(tmp_path / "killed" / name)) == steady(table(run / name)), name


def test_a_run_is_never_overwritten(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (run / "config.json").stat().st_mtime_ns
    assert train("run") == 1
    assert "no run is ever overwritten" in capsys.readouterr().err
    assert (run / "config.json").stat().st_mtime_ns == before


def test_default_folders_are_free_ones(tmp_path: Path) -> None:
    for _ in range(2):
        assert cli.main(["train", "CartPole-v1", "--timesteps", "200", *FAST]) == 0
    assert (tmp_path / "runs/CartPole-v1/staq/5/model").exists()
    assert (tmp_path / "runs/CartPole-v1/staq/5-2/model").exists()


def test_eval_takes_a_run_an_export_and_with_trust_a_zip(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["run"], ["run", "--best"], ["run/model"]):
        assert cli.main(["eval", *arguments, "--episodes", "3"]) == 0
        out = capsys.readouterr().out
        assert "greedy" in out
        assert "stochastic" in out
    small_model().learn(200).save("model.zip")
    assert cli.main(["eval", "model.zip", "--env", "CartPole-v1"]) == 1
    assert "--trust" in capsys.readouterr().err
    assert cli.main(["eval", "model.zip", "--trust", "--episodes", "2"]) == 1
    assert "name it with --env" in capsys.readouterr().err
    assert cli.main(["eval", "model.zip", "--trust", "--episodes", "2", "--env", "CartPole-v1"]) == 0


@pytest.mark.parametrize("name", ["film.mp4", "film.gif"])
@pytest.mark.parametrize("env", ["CartPole-v1", "MinAtar/Breakout-v1"])
def test_watch_makes_a_film_with_the_probabilities(name: str, env: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    assert train("run", env=env, steps=200) == 0
    assert cli.main(["watch", "run", "--out", name, "--stochastic"]) == 0
    with imageio.get_reader(name) as film:
        frame = film.get_data(0)
    assert frame.shape[0] == 320
    assert frame.shape[1] > 320  # the game and the panel beside it
    assert cli.main(["watch", "run", "--out", "film.png"]) == 1


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
        assert cli.main(["watch", "run", "--out", "film.gif"]) == 0
    finally:
        del gymnasium.registry["Reach-v0"]
    assert load_policy("run/model")[0].codec.factors.sizes == ((7, 7) if actions == "factored" else (5,))
    assert Config.load(Path("run")).actions == actions
    with imageio.get_reader("film.gif") as film:
        frame = film.get_data(0)
    orange = (frame[..., 0] > 180) & (frame[..., 2] < 60)
    assert orange[:, 320:].any()  # what was chosen


def test_a_zip_does_not_say_that_its_actions_are_boundaries(capsys: pytest.CaptureFixture[str]) -> None:
    env = make_vec_env("Pendulum-v1", 2, wrapper_class=BoundaryActions)
    StaQ("MlpPolicy", env, policy_kwargs={"net_arch": [8]}, device="cpu").save("boundary.zip")
    assert cli.main("eval boundary.zip --trust --env Pendulum-v1 --episodes 1".split()) == 0
    assert "Pendulum-v1  greedy" in capsys.readouterr().out
    assert cli.main("eval boundary.zip --trust --env CartPole-v1 --episodes 1".split()) == 1
    assert "acts in Discrete(3), and CartPole-v1 takes Discrete(2)" in capsys.readouterr().err


@pytest.mark.parametrize("sizes", [[13], [35], [60], [2, 101], [7] * 17, [2] * 80], ids=str)
def test_panels_of_any_size_show_the_choice(sizes: list[int]) -> None:
    canvas, left = watch._canvas(np.full((64, 64, 3), 255, np.uint8), 1.0)
    names = [[f"action {i}" for i in range(size)] for size in sizes]
    parts = [np.full(size, 1 / size) for size in sizes]
    if len(sizes) == 1:
        watch._bars(canvas, left, parts[0], names[0], chosen=sizes[0] - 1)
    else:
        watch._strips(canvas, left, parts, names, np.array([size - 1 for size in sizes]))
    panel = np.asarray(canvas)[:, left:]
    orange = (panel[..., 0] > 180) & (panel[..., 2] < 60)
    assert orange.any()


@pytest.mark.skipif(ctypes.util.find_library("EGL") is None, reason="MuJoCo's headless renderer needs EGL")
def test_mujoco_is_filmed_without_a_window(tmp_path: Path) -> None:
    """In a process of its own: MuJoCo reads how to render when it is imported."""
    script = (
        "from staq.envs.make import make_env\n"
        "env = make_env('HalfCheetah-v5', 'boundary', render_mode='rgb_array'); env.reset(seed=0)\n"
        "assert env.render().std() > 5"
    )
    hidden = {name: value for name, value in os.environ.items() if name not in ("DISPLAY", "MUJOCO_GL")}
    subprocess.run([sys.executable, "-c", script], check=True, env=hidden | {"DISPLAY": ""}, cwd=tmp_path, timeout=120)


@pytest.mark.parametrize("space", [spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(3)], ids=str)
def test_a_baselines_probabilities_have_a_column_per_choice(space: Any) -> None:
    player = SB3Policy(PPO("MlpPolicy", Endless(action_space=space), n_steps=8, batch_size=8, device="cpu"))
    probabilities = player.action_probabilities(np.zeros(3, np.float32))
    action, _ = player.predict(np.zeros(3, np.float32))
    assert player.codec is not None
    for part in np.split(probabilities, player.codec.factors.first[1:]):
        assert part.sum() == pytest.approx(1)
    assert player.codec.indices(action)[0].dtype == np.int64


def test_a_baseline_can_have_the_boundary(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--algo", "dqn", "--actions", "boundary", "--n-envs", "1", "--threads", "1", "--eval-episodes", "1"]
    assert cli.main(["train", "Pendulum-v1", "--timesteps", "300", "--out", "dqn", *arguments]) == 0
    assert cli.main(["eval", "dqn", "--episodes", "1"]) == 0
    assert "Pendulum-v1  greedy" in capsys.readouterr().out
    assert cli.main(["train", "Pendulum-v1", "--algo", "dqn", "--out", "no"]) == 1
    assert "use --actions boundary" in capsys.readouterr().err


def test_plot_joins_seeds_and_tells_kinds_apart(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train("seed6", "--seed", "6") == 0
    assert train("exact", "--memory-size", "none") == 0
    assert train("faster", "--learning-rate", "1e-2") == 0
    assert cli.main(["plot", "run", "seed6", "exact", "faster", "--out", "curves.png"]) == 0
    assert imageio.imread("curves.png").shape[0] > 300
    out = capsys.readouterr().out
    assert re.search(
        r"CartPole-v1  StaQ M=3, learning_rate=0.0001, 2 seeds: [\d.]+ ± [\d.]+ \(95 %\) at 800 steps", out
    )
    assert re.search(r"exact PMD, 1 seed: [\d.]+ at 800 steps", out), "one seed has no interval"
    assert cli.main(["plot", "run", "seed6", "exact", "faster", "--apart", "--out", "apart.png"]) == 0
    assert capsys.readouterr().out.splitlines()[:-1] == out.splitlines()[-4:-1], "the same numbers, in a panel each"
    assert imageio.imread("apart.png").shape[1] > 3 * imageio.imread("apart.png").shape[0]
    config = Config.load(Path("run"))
    whole = replace(config, hyperparameters=config.hyperparameters | {"reward_scale": 10}, actions="factored")
    assert kind_of(whole) == kind_of(config), "what is said twice, or as a whole number, is no other kind"
    kinds = [kind_of(Config.load(Path(name))) for name in ("run", "seed6", "exact", "faster")]
    assert kinds[0] == kinds[1]
    assert labels_of([dict(kinds[0]), dict(kinds[2]), dict(kinds[3])]) == [
        "StaQ M=3, learning_rate=0.0001",
        "exact PMD",
        "StaQ M=3, learning_rate=0.01",
    ]


def test_info(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["info"]) == 0
    out = capsys.readouterr().out
    assert "preset minatar" in out
    assert "torch" in out


def test_theory_check_prints_saves_and_reruns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main("theory check --trials 60 --seed 0 --processes 1 --json audit.json".split()) == 0
    saved = json.loads(Path("audit.json").read_text())
    rows = {row["statement"]: row for row in saved["statements"]}
    lemma = rows["Lemma 4.3"]
    assert lemma["trials"] == 60
    assert lemma["violations_as_stated"] > lemma["violations_as_repaired"] == 0
    assert rows["Lemma 4.1"]["violations_as_repaired"] is None
    assert "Theorem 5.1" in capsys.readouterr().out
    rerun = lemma["smallest_counterexample"].split("staq ")[1].split()
    assert cli.main(rerun) == 0
    out = capsys.readouterr().out
    assert re.search(r"Lemma 4.3 +violated as stated .*holds as repaired", out)


def test_theory_averaging_goes_on_after_an_interruption(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(averaging, "ENVIRONMENTS", {"pendulum": lambda: pendulum(6)})
    monkeypatch.setattr(averaging, "MEMORIES", (2, 3))
    monkeypatch.setattr(averaging, "SMOOTHING", 2)
    monkeypatch.setattr(averaging, "scaled_to", lambda budget: (2, 8))
    fit, iterate = averaging.FittedQ.fit, averaging.Study.iterate
    monkeypatch.setattr(averaging.FittedQ, "fit", lambda networks, targets, steps: fit(networks, targets, 3))

    def stopped_at_five(study: averaging.Study) -> None:
        if study.iteration == 5:
            raise KeyboardInterrupt
        iterate(study)

    words = "theory averaging --envs pendulum --out averaging".split()
    with monkeypatch.context() as interruption:
        interruption.setattr(averaging.Study, "iterate", stopped_at_five)
        assert cli.main(words) == 130
    assert cli.main(words) == 0
    assert "62%" in capsys.readouterr().err, "it went on after the fifth of eight iterations"
    assert sorted(path.name for path in Path("averaging").iterdir()) == ["averaging.png", "pendulum.csv"]
    assert {row.iteration for row in averaging.read(Path("averaging/pendulum.csv"))} == set(range(2, 9))


def test_theory_plot_draws_every_picture(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["theory", "plot", "--out", "pictures"]) == 0
    names = {path.stem for path in Path("pictures").glob("*.png")}
    assert names == {"bound", "trade-off", "update", "memory", "rate", "threshold"}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--memory-size", "100"], {"memory_size": 100}),
        (["--memory-size=none"], {"memory_size": None}),
        (["--learning-rate", "3e-4", "--behaviour", "sticky"], {"learning_rate": 3e-4, "behaviour": "sticky"}),
        (["--ent-decay-steps", "1e6"], {"ent_decay_steps": 1_000_000}),
        (["--policy-kwargs", "{net_arch=[8]}"], {"policy_kwargs": {"net_arch": [8]}}),
    ],
)
@pytest.mark.parametrize("options_first", [False, True])
def test_overrides(words: list[str], expected: dict[str, Any], options_first: bool) -> None:
    line = [*words, "CartPole-v1"] if options_first else ["CartPole-v1", *words]
    options = cli.build_parser().parse_args(["train", *line])
    assert options.env == "CartPole-v1"
    parsed = overrides(options)
    assert parsed == expected
    assert [type(v) for v in parsed.values()] == [type(v) for v in expected.values()]


def test_the_policy_can_be_overridden() -> None:
    assert train("run", "--policy", "MlpPolicy", env="MinAtar/Breakout-v1", steps=200) == 0
    assert Config.load(Path("run")).policy == "MlpPolicy"


def test_a_run_can_be_extended_and_nothing_else_changed(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "--resume", "run", "--seed", "9", "--memory-size", "4"]) == 1
    assert "leave out seed, memory_size" in capsys.readouterr().err
    assert cli.main(["train", "--resume", "run", "--timesteps", "1400"]) == 0
    assert Config.load(run).timesteps == 1400
    assert train("longer", steps=1400) == 0
    assert steady(table(run / "progress.csv")) == steady(table(Path("longer/progress.csv")))


def test_a_run_killed_in_its_first_iteration_begins_again(run: Path) -> None:
    Path("killed").mkdir()
    shutil.copy("run/config.json", "killed/config.json")
    Path("killed/monitor.csv").write_text("#{}\nr,l,t\n1,2,3\n")
    assert cli.main(["train", "--resume", "killed"]) == 0
    for name in ("progress.csv", "monitor.csv", "evaluations.csv"):
        assert steady(table(Path("killed") / name)) == steady(table(run / name)), name


def test_a_kill_right_after_resuming_keeps_the_log(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (run / "progress.csv").read_text()

    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("staq.loop.PolicyMirrorDescent.learn", killed)
    assert cli.main(["train", "--resume", "run", "--timesteps", "1400"]) == 130
    assert (run / "progress.csv").read_text() == before


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


def test_help_says_what_every_hyperparameter_is(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["train", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "discount factor [0.99]" in text
    assert (
        "states per gradient step, of the critics and of an actor [256: staq and variants; 32: dqn, m-dqn; 64: ppo; 128: trpo]"
        in text
    )
    assert (
        "how many Q-functions the policy consists of; None keeps all (exact mirror descent) [300: staq; None:" in text
    )


def test_a_number_of_steps_is_finite(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["train", "CartPole-v1", "--timesteps", "inf"])
    assert "'inf' is not a positive whole number" in capsys.readouterr().err


def test_a_run_is_trained_by_one_process_at_a_time(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (run / "progress.csv").read_text()
    with locked(run / "checkpoints" / ".lock", wait=False):
        assert cli.main(["train", "--resume", "run", "--timesteps", "1400"]) == 1
    assert "Another process is at work with run" in capsys.readouterr().err
    assert (run / "progress.csv").read_text() == before
    assert cli.main(["train", "--resume", "run", "--timesteps", "1400"]) == 0


def test_a_file_does_not_say_which_module_is_imported(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Gymnasium imports the module in front of a colon, and an export that was downloaded may name any."""
    description = run / "model" / DESCRIPTION
    description.write_text(description.read_text().replace('"CartPole-v1"', '"antigravity:CartPole-v1"'))
    assert cli.main(["eval", "run/model"]) == 1
    assert "runs the code of a module" in capsys.readouterr().err
    assert "antigravity" not in sys.modules
    assert cli.main(["eval", "run/model", "--env", "CartPole-v1", "--episodes", "2"]) == 0
    description.write_text(description.read_text().replace("antigravity:", "gymnasium:"))
    assert cli.main(["eval", "run/model", "--trust", "--episodes", "2"]) == 0


@pytest.mark.parametrize("git", ["missing", "of another project"])
def test_a_commit_is_recorded_where_it_is_ours(git: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if git == "missing":
        monkeypatch.setenv("PATH", str(tmp_path))
    else:
        someone = ["-c", "user.name=someone", "-c", "user.email=someone@example.org"]
        subprocess.run(["git", "init", "-q", "."], check=True)
        subprocess.run(["git", *someone, "commit", "-q", "--allow-empty", "-m", "theirs"], check=True)
        monkeypatch.setattr(runs, "__file__", str(tmp_path / "venv" / "runs.py"))
        (tmp_path / "venv").mkdir()
    assert runs.provenance()["commit"] is None
    assert train("run") == 0


def test_a_failed_start_leaves_no_folder(tmp_path: Path) -> None:
    assert train("bad", "--memory-size", "0") == 1
    assert not (tmp_path / "bad").exists()


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any, **__: Any) -> None:
        raise gymnasium.error.DependencyNotInstalled("Box2D is not installed")

    monkeypatch.setattr(gymnasium, "make", missing)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'staq\[box2d\]'"):
        make_envs("LunarLander-v3", 1)


def test_a_damaged_configuration_is_named(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "config.json").write_text('{"env": "CartPole-v1"}')
    assert cli.main(["train", "--resume", "run"]) == 1
    assert "not the configuration of a run" in capsys.readouterr().err


def test_a_foreign_zip_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    Path("foreign.zip").write_text("not a model")
    assert cli.main(["eval", "foreign.zip", "--trust", "--env", "CartPole-v1"]) == 1
    assert "not a model saved by StaQ" in capsys.readouterr().err


def test_a_read_only_folder_is_a_clear_error(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied", "somewhere/run")

    monkeypatch.setattr(Path, "mkdir", refuse)
    assert train("somewhere/run") == 1
    assert "Permission denied" in capsys.readouterr().err


def test_config_round_trips(run: Path) -> None:
    config = Config.load(run)
    assert config.env == "CartPole-v1"
    assert config.hyperparameters["policy_kwargs"] == {"net_arch": [16]}


def test_weights_and_biases_is_an_extra(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert train("run", "--wandb", "project") == 1
    assert "pip install 'staq[wandb]'" in capsys.readouterr().err


@pytest.mark.slow
def test_the_demo_solves_cartpole(capsys: pytest.CaptureFixture[str]) -> None:
    """A broken agent stays below 200 for all of its 60,000 steps."""
    assert cli.main(["train", "CartPole-v1", "--preset", "demo", "--out", "demo"]) == 0
    assert "Greedy return over 20 fresh episodes after 60000 steps: 500.0 (worst 500.0)" in capsys.readouterr().out
