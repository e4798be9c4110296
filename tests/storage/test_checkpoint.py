"""Checkpoints: exact, atomic, incremental, data only."""

from __future__ import annotations

import os
import pickle
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecFrameStack, VecNormalize

from staq import Checkpoints, StaQ, resume
from staq.storage.atomic_files import DamagedFile, read, write_atomically
from staq.storage.checkpoint import newest_state
from staq.storage.environment_snapshot import CannotRestore, restore, restores_exactly, snapshot
from tests.conftest import SMALL, Endless, assert_identical, small_model


def finish(model: StaQ, folder: Path, total: int) -> StaQ:
    """What the documentation says: resume, then learn what is left."""
    resume(model, folder)
    return model.learn(total - model.num_timesteps, reset_num_timesteps=False, callback=Checkpoints(folder))


@pytest.mark.parametrize(
    ("env_id", "arguments"),
    [
        ("CartPole-v1", {}),
        ("CartPole-v1", {"memory_size": None, "behaviour": "sticky", "target_action": "sampled"}),
        ("CartPole-v1", {"learning_rate": lambda progress: 1e-3 * progress, "weighting": "exact"}),
        ("MinAtar/Breakout-v1", {}),
        ("MinAtar/SpaceInvaders-v1", {"memory_size": 1}),
        ("HalfCheetah-v5", {"behaviour": "sticky"}),
    ],
)
@pytest.mark.parametrize("stop_after", [200, 1400])
def test_resuming_equals_never_stopping(tmp_path: Path, env_id: str, arguments: Any, stop_after: int) -> None:
    """Element by element: before anything has wrapped, and after buffer and stack have."""
    whole = small_model(env_id, **arguments).learn(2000)

    stopping = StopAt(stop_after + 1)
    small_model(env_id, **arguments).learn(2000, callback=[Checkpoints(tmp_path), stopping])
    resumed = finish(small_model(env_id, **arguments), tmp_path, 2000)
    assert_identical(whole, resumed)
    obs = whole.replay.observations[:50].numpy()
    np.testing.assert_array_equal(whole.predict(obs)[0], resumed.predict(obs)[0])


class StopAt(BaseCallback):
    def __init__(self, step: int) -> None:
        super().__init__()
        self.step = step

    def _on_step(self) -> bool:
        return self.num_timesteps < self.step


@pytest.mark.parametrize("stop", [300, 1300])
@pytest.mark.parametrize("every", [1, 3])
def test_a_run_stopped_by_a_callback_goes_on_in_the_same_folder(tmp_path: Path, stop: int, every: int) -> None:
    """In the middle of an iteration, before and after the buffer is full; the checkpoints after it are whole."""
    model = small_model()
    model.learn(4000, callback=[Checkpoints(tmp_path, every), StopAt(stop)])
    model.learn(1700 - stop, reset_num_timesteps=False, callback=Checkpoints(tmp_path, every))
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


def test_statistics_of_vec_normalize_survive_environments_that_do_not(tmp_path: Path) -> None:
    pytest.importorskip("Box2D")

    def model() -> StaQ:
        return StaQ("MlpPolicy", VecNormalize(make_vec_env("LunarLander-v3", 4, seed=1)), **SMALL)

    first = model()
    first.learn(400, callback=Checkpoints(tmp_path))
    with pytest.warns(UserWarning, match="begin new episodes"):
        resumed = resume(model(), tmp_path)
    old, new = first.get_vec_normalize_env(), resumed.get_vec_normalize_env()
    assert old is not None
    assert new is not None
    assert new.obs_rms.count == pytest.approx(old.obs_rms.count + 4)  # one more reset
    np.testing.assert_allclose(new.obs_rms.mean, old.obs_rms.mean, atol=0.05)


def test_wrappers_of_the_vectorised_environment_are_restored(tmp_path: Path) -> None:
    def model() -> StaQ:
        env = VecFrameStack(VecNormalize(make_vec_env("CartPole-v1", 4, seed=1)), 2)
        return StaQ("MlpPolicy", env, **SMALL, policy_kwargs={"net_arch": [16]})

    whole = model().learn(1000)
    model().learn(600, callback=Checkpoints(tmp_path))
    resumed = finish(model(), tmp_path, 1000)
    assert_identical(whole, resumed)


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
    assert sorted(path.name for path in tmp_path.glob("state-*")) == ["state-000009.pt", "state-000010.pt"]
    # M = 3 kept by the newest state and one more by the state before it.
    assert sorted(path.name for path in tmp_path.glob("frozen-*")) == [f"frozen-{k:06d}.pt" for k in (6, 7, 8, 9)]
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
        UserWarning, match=r"state-000005.pt is damaged. Using the checkpoint before it, state-000004.pt"
    ):
        model = resume(small_model(), tmp_path)
    assert model.iteration == 4
    model.learn(1000 - model.num_timesteps, reset_num_timesteps=False)
    assert_identical(model, small_model().learn(1000))


@pytest.mark.parametrize("name", ["frozen-000004.pt", "replay-000005.pt"])
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


def test_a_checkpoint_cannot_run_code(tmp_path: Path) -> None:
    class Payload:
        def __reduce__(self) -> Any:
            return os.system, (f"touch {tmp_path}/pwned",)

    write_atomically(tmp_path / "state-000001.pt", {"harmless": Payload()})
    with pytest.raises(pickle.UnpicklingError):
        read(tmp_path / "state-000001.pt")
    assert not (tmp_path / "pwned").exists()


def test_a_full_disk_leaves_the_checkpoints_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_model()
    model.learn(400, callback=Checkpoints(tmp_path))
    files = {path.name for path in tmp_path.iterdir()}

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"could not be written \(No space left on device\).*intact"):
        model.learn(400, reset_num_timesteps=False, callback=Checkpoints(tmp_path))
    assert {path.name for path in tmp_path.iterdir()} == files
    monkeypatch.undo()
    assert resume(small_model(), tmp_path).iteration == 2


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


def test_environments_that_cannot_be_restored_begin_new_episodes(tmp_path: Path) -> None:
    pytest.importorskip("Box2D")
    small_model("LunarLander-v3").learn(400, callback=Checkpoints(tmp_path))
    with pytest.warns(UserWarning, match="begin new episodes"):
        model = resume(small_model("LunarLander-v3"), tmp_path)
    model.learn(200, reset_num_timesteps=False)
    assert model.iteration == 3


# ---------------------------------------------------------------------- snapshots of environments


@pytest.mark.parametrize(
    ("env_id", "exactly"),
    [
        *((name, True) for name in ("CartPole-v1", "Acrobot-v1", "MountainCar-v0", "Pendulum-v1")),
        *((f"MinAtar/{g}-v1", True) for g in ("Asterix", "Breakout", "Freeway", "Seaquest", "SpaceInvaders")),
        *((f"{body}-v5", True) for body in ("HalfCheetah", "Walker2d", "Ant", "Humanoid")),
        ("LunarLander-v3", False),
    ],
)
def test_which_environments_restore_exactly(env_id: str, exactly: bool) -> None:
    assert restores_exactly(make_vec_env(env_id, 1)) is exactly


class SecretGenerator(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Its state is no plain data, and its constructor is not on record."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.dice = random.Random(0)

    def step(self, action: Any) -> Any:
        obs, reward, *rest = self.env.step(action)
        return obs, float(reward) + self.dice.random(), *rest


class GoalsOfTheEpisode(gymnasium.Env[np.ndarray, int]):
    """What it draws at a reset stays the same until the next, and is a set: no plain data."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    observation_space = gymnasium.spaces.Box(0, 100, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.goals = {int(self.np_random.integers(1, 100))}
        return np.array([0.0], dtype=np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        return np.array([sum(self.goals)], dtype=np.float32), 1.0, False, False, {}


def test_what_is_not_plain_data_is_found_out() -> None:
    assert not restores_exactly(make_vec_env("CartPole-v1", 1, wrapper_class=SecretGenerator))
    gymnasium.register("Goals-v0", entry_point=GoalsOfTheEpisode)
    try:
        assert not restores_exactly(make_vec_env("Goals-v0", 1))
    finally:
        del gymnasium.registry["Goals-v0"]


def test_an_environment_made_by_hand_is_not_trusted() -> None:
    from stable_baselines3.common.vec_env import DummyVecEnv

    assert not restores_exactly(DummyVecEnv([Endless]))


def test_a_shared_generator_stays_shared() -> None:
    class Pair:
        def __init__(self, seed: int) -> None:
            self.one = self.two = np.random.RandomState(seed)

    first, second = Pair(1), Pair(2)
    restore(second, snapshot(first))
    assert second.one is second.two
    assert second.one.rand() == first.one.rand()


def test_the_state_of_mujoco_needs_mujoco() -> None:
    cheetah, pendulum = gymnasium.make("HalfCheetah-v5"), gymnasium.make("Pendulum-v1")
    cheetah.reset()
    data = {"data": snapshot(cheetah.unwrapped)["__object__"]["data"]}
    with pytest.raises(CannotRestore, match="was MuJoCo's data"):
        restore(pendulum.unwrapped, {"__object__": data})


def test_an_object_that_is_not_there_cannot_be_restored() -> None:
    class Holder:
        def __init__(self, held: Any) -> None:
            self.held = held

    with pytest.raises(CannotRestore, match=r"Holder.held was an object"):
        restore(Holder(None), snapshot(Holder(Holder(1))))


# ---------------------------------------------------------------------- kill -9

RUN = """
import sys
sys.path.insert(0, {root!r})
from pathlib import Path
from staq import Checkpoints, resume
from tests.conftest import small_model
import torch
torch.set_num_threads(1)
folder = Path(sys.argv[1])
model = small_model({env!r})
if any(folder.glob("state-*")):
    resume(model, folder)
model.learn({total} - model.num_timesteps, reset_num_timesteps=False, callback=Checkpoints(folder))
"""


def newest_number(folder: Path) -> int:
    return max((int(path.name[6:12]) for path in folder.glob("state-*.pt")), default=0)


@pytest.mark.slow
@pytest.mark.parametrize("env_id", ["CartPole-v1", "MinAtar/Breakout-v1"])
def test_kill_9_at_random_moments_loses_at_most_an_iteration(tmp_path: Path, env_id: str) -> None:
    """Ten kills, each some iterations and a random fraction of one after the last; then the run is finished."""
    total = 24_000
    script = RUN.format(root=str(Path(__file__).parents[2]), env=env_id, total=total)
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
    resumed = resume(small_model(env_id), tmp_path)
    assert resumed.num_timesteps == total
    assert_identical(small_model(env_id).learn(total), resumed)
