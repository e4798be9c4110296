"""Checkpoints: exact, atomic, incremental, data only."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from staq import Checkpoints, StaQ, resume
from staq.storage.checkpoint import newest_state
from staq.storage.plain_data import DamagedFile
from tests.conftest import StopAt, assert_identical, lambda_model, small_model
from tests.storage.conftest import finish


@pytest.mark.parametrize(
    ("env_id", "arguments"),
    [
        ("CartPole-v1", {}),
        ("CartPole-v1", {"memory_size": None, "behaviour": "sticky", "target_action": "sampled"}),
        ("CartPole-v1", {"learning_rate": lambda progress: 1e-3 * progress, "weighting": "exact"}),
        ("MinAtar/Breakout-v1", {}),
        pytest.param("MinAtar/SpaceInvaders-v1", {"memory_size": 1}, marks=pytest.mark.slow),
        pytest.param("HalfCheetah-v5", {"behaviour": "sticky"}, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("stop_after", [pytest.param(200, marks=pytest.mark.slow), 1400])
def test_resuming_equals_never_stopping(tmp_path: Path, env_id: str, arguments: Any, stop_after: int) -> None:
    """Element by element: before anything has wrapped, and after buffer and stack have."""
    whole = small_model(env_id, **arguments).learn(2000)

    stopping = StopAt(stop_after + 1)
    small_model(env_id, **arguments).learn(2000, callback=[Checkpoints(tmp_path), stopping])
    resumed = finish(small_model(env_id, **arguments), tmp_path, 2000)
    assert_identical(whole, resumed)
    obs = whole.replay.observations[:50].numpy()
    np.testing.assert_array_equal(whole.predict(obs)[0], resumed.predict(obs)[0])


@pytest.mark.parametrize("stop", [300, 1300])
@pytest.mark.parametrize("every", [1, 3])
def test_a_run_stopped_by_a_callback_goes_on_in_the_same_folder(tmp_path: Path, stop: int, every: int) -> None:
    """In the middle of an iteration, before and after the buffer is full; the checkpoints after it are whole."""
    model = small_model()
    model.learn(4000, callback=[Checkpoints(tmp_path, every), StopAt(stop)])
    model.learn(1800 - stop, reset_num_timesteps=False, callback=Checkpoints(tmp_path, every))
    resumed = resume(small_model(), tmp_path)
    assert resumed.iteration == model.iteration
    assert_identical(model, resumed)


def test_no_checkpoint_is_written_in_the_middle_of_an_iteration(tmp_path: Path) -> None:
    model = small_model()
    model.learn(4000, callback=StopAt(300))
    model.learn(100, reset_num_timesteps=False, callback=Checkpoints(tmp_path))
    assert newest_state(tmp_path)["counters"]["steps_collected"] == 400


def test_a_loaded_model_can_be_checkpointed(tmp_path: Path) -> None:
    model = small_model().learn(600)
    model.save(tmp_path / "model")
    loaded = StaQ.load(tmp_path / "model", env=model.get_env())
    loaded.learn(400, callback=Checkpoints(tmp_path / "checkpoints"))
    assert_identical(loaded, resume(small_model(), tmp_path / "checkpoints"))


def test_each_frozen_network_is_written_once_and_old_files_go(tmp_path: Path) -> None:
    written: list[str] = []

    class Recording(Checkpoints):
        def write(self) -> None:
            before = {path.name: path.stat().st_mtime_ns for path in self.folder.iterdir()}
            super().write()
            after = {path.name: path.stat().st_mtime_ns for path in self.folder.iterdir()}
            written.extend(name for name, stamp in after.items() if before.get(name) != stamp)

    model = small_model().learn(2000, callback=Recording(tmp_path))
    assert len(written) == len(set(written)), "no file is written twice"
    assert sorted(path.name for path in tmp_path.glob("state-*")) == [
        "state-000009.safetensors",
        "state-000010.safetensors",
    ]
    # M = 3 kept by the newest state and one more by the state before it.
    assert sorted(path.name for path in tmp_path.glob("frozen-*")) == [
        f"frozen-{k:06d}.safetensors" for k in (6, 7, 8, 9)
    ]
    # 500 transitions need three segments of 200, and the state before needs one more.
    assert len(list(tmp_path.glob("replay-*"))) == 4
    assert model.iteration == 10


def test_the_last_good_checkpoint_is_used_and_the_user_is_told(tmp_path: Path) -> None:
    small_model().learn(1000, callback=Checkpoints(tmp_path))
    newest = max(tmp_path.glob("state-*"))
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 1
    newest.write_bytes(data)
    with pytest.warns(
        UserWarning,
        match=r"state-000005.safetensors is damaged. Using the checkpoint before it, state-000004",
    ):
        model = resume(small_model(), tmp_path)
    assert model.iteration == 4
    model.learn(1000 - model.num_timesteps, reset_num_timesteps=False)
    assert_identical(model, small_model().learn(1000))


@pytest.mark.parametrize("name", ["frozen-000004.safetensors", "replay-000005.safetensors"])
@pytest.mark.parametrize("damage", ["missing", "cut"])
def test_damage_to_any_file_of_the_newest_is_noticed(tmp_path: Path, name: str, damage: str) -> None:
    small_model().learn(1000, callback=Checkpoints(tmp_path))
    path = tmp_path / name
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-7])
    with pytest.warns(UserWarning, match=f"{name} is"):
        assert resume(small_model(), tmp_path).iteration == 4


def test_nothing_whole_is_an_error(tmp_path: Path) -> None:
    small_model().learn(400, callback=Checkpoints(tmp_path))
    for path in tmp_path.glob("state-*"):
        path.write_bytes(b"")
    with pytest.raises(DamagedFile, match="No checkpoint in"):
        newest_state(tmp_path)
    with pytest.raises(FileNotFoundError, match="no checkpoint"):
        newest_state(tmp_path / "elsewhere")
    (tmp_path / "run/checkpoints").mkdir(parents=True)
    (tmp_path / "run/checkpoints/state-000001.safetensors").touch()
    with pytest.raises(FileNotFoundError, match="Those of this run are in .*run/checkpoints"):
        newest_state(tmp_path / "run")


def test_other_arguments_are_refused_by_name(tmp_path: Path) -> None:
    small_model().learn(400, callback=Checkpoints(tmp_path))
    for changed, message in (
        ({"kl_weight": 3.0}, "written with kl_weight=20.0, the model has 3.0"),
        ({"learning_rate": 1.0}, "written with learning_rate=0.0001"),
        ({"policy_kwargs": {"net_arch": [16, 16], "activation_fn": torch.nn.Tanh}}, "policy_kwargs=.*Tanh"),
    ):
        with pytest.raises(ValueError, match=message):
            resume(small_model(**changed), tmp_path)


def test_a_folder_of_another_run_is_refused(tmp_path: Path) -> None:
    small_model().learn(400, callback=Checkpoints(tmp_path))
    with pytest.raises(FileExistsError, match="another run"):
        small_model().learn(400, callback=Checkpoints(tmp_path))


def test_a_run_that_was_given_more_memory_needs_another_folder(tmp_path: Path) -> None:
    """Its pushes are counted anew, and must not be taken for those that are there."""
    model = small_model().learn(1000, callback=Checkpoints(tmp_path / "checkpoints"))
    model.save(tmp_path / "model")
    loaded = StaQ.load(tmp_path / "model", env=model.get_env(), memory_size=6)
    with pytest.raises(ValueError, match="memory_size=3, the model has 6.*another folder"):
        loaded.learn(400, callback=Checkpoints(tmp_path / "checkpoints"))
    loaded.learn(400, callback=Checkpoints(tmp_path / "others"))
    assert_identical(loaded, resume(small_model(memory_size=6), tmp_path / "others"))


# ---------------------------------------------------------------------- kill -9

RUN = """
import sys
sys.path.insert(0, {root!r})
from pathlib import Path
from staq import Checkpoints, resume
from tests.conftest import {make}
import torch
torch.set_num_threads(1)
folder = Path(sys.argv[1])
model = {make}({env!r})
if any(folder.glob("state-*")):
    resume(model, folder)
saving = Checkpoints(folder, seconds=0.0)
model.learn({total} - model.num_timesteps, reset_num_timesteps=False, callback=saving)
"""


def newest_number(folder: Path) -> int:
    return max((int(path.name[6:12]) for path in folder.glob("state-*.safetensors")), default=0)


@pytest.mark.slow
@pytest.mark.parametrize("make", [small_model, lambda_model])
@pytest.mark.parametrize("env_id", ["CartPole-v1", "MinAtar/Breakout-v1"])
def test_kill_9_at_random_moments_loses_at_most_an_iteration(tmp_path: Path, env_id: str, make: Any) -> None:
    """Ten kills, each some iterations and a random fraction of one after the last; then the run is finished."""
    total = 24_000 if make is small_model else 80_000  # whose iterations are shorter
    script = RUN.format(root=str(Path(__file__).parents[2]), env=env_id, total=total, make=make.__name__)
    rng, before = np.random.default_rng(0), 0
    for _ in range(10):
        process = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)])
        wanted = before + int(rng.integers(2, 10))
        while newest_number(tmp_path) < wanted:
            assert process.poll() is None, "the run ended by itself"
            time.sleep(0.01)
        time.sleep(float(rng.uniform(0, 0.4)))
        reached = newest_number(tmp_path)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        before = newest_state(tmp_path)["counters"]["iteration"]
        assert before >= reached, "what was finished before the kill is kept, and whole"
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True)
    resumed = resume(make(env_id), tmp_path)
    assert resumed.num_timesteps == total
    assert_identical(make(env_id).learn(total), resumed)
