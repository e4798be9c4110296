"""Files made to harm: each is refused in one line, nothing in them is run, and no model is half of one."""

from __future__ import annotations

import base64
import io
import json
import os
import pickle
import re
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load, save
from stable_baselines3 import DQN
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.save_util import save_to_pkl

from staq import Checkpoints, StaQ, load_policy, resume
from staq.policies import MlpPolicy
from staq.storage import atomic_files, model_file
from staq.storage.plain_data import DamagedFile
from tests.conftest import TinyExtractor, small_model

DEEP = "[" * 100_000 + "]" * 100_000


class Payload:
    """Unpickled, it leaves a file behind."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("executed",)


@pytest.fixture(autouse=True)
def nothing_is_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    yield
    assert not (tmp_path / "executed").exists()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, its replay, its export and its checkpoints."""
    folder = tmp_path_factory.mktemp("trained")
    model = small_model(policy_kwargs={"net_arch": [4]}).learn(400, callback=Checkpoints(folder / "checkpoints"))
    model.save(folder / "model.zip")
    model.save_replay_buffer(folder / "replay.safetensors")
    model.export(folder / "export")
    return folder


def refused(load: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        load()
    assert "\n" not in str(caught.value)


# ---------------------------------------------------------------------- models


def members_of(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def zipped(members: Any, compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile("hostile.zip", "w", compression) as archive:
        for name, content in members.items() if isinstance(members, dict) else members:
            archive.writestr(name, content)
    return Path("hostile.zip")


def with_attributes(trained: Path, **changes: Any) -> Path:
    members = members_of(trained / "model.zip")
    data = json.loads(members["data"])
    data["attributes"] |= changes
    return zipped(members | {"data": json.dumps(data)})


def with_tensors(trained: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> Path:
    members = members_of(trained / "model.zip")
    tensors = load(members["tensors.safetensors"])
    change(tensors)
    return zipped(members | {"tensors.safetensors": save(tensors)})


def a_pickle() -> dict[str, str]:
    return {"$pickle": base64.b64encode(pickle.dumps(Payload())).decode()}


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"gamma": a_pickle()}, r"gamma as a pickle.*trust=True.*--trust"),
        ({"policy_kwargs": {"activation_fn": a_pickle()}}, "policy_kwargs as a pickle.*custom_objects"),
        ({"policy_class": {"$class": "os.system"}}, "os.system"),
        ({"policy_kwargs": {"activation_fn": {"$class": "subprocess.Popen"}}}, "subprocess.Popen"),
        ({"learn": {"$partial": ["os.system", {"command": "mkdir executed"}]}}, "os.system"),
        ({"learn": 5}, "learn is no attribute"),
        ({"policy_kwargs": {"net_arch": [10**9, 10**9]}}, r"do not fit.*is described"),
        ({"policy_kwargs": {"net_arch": [1] * 10**6}}, "net_arch of 1000000.*1000 at most"),
        ({"n_critics": 10**9}, "n_critics of 1000000000"),
        ({"memory_size": 10**15}, "memory_size=1000000000000000"),
        ({"buffer_size": 10**15}, "buffer_size=1000000000000000"),
        ({"observation_space": {"$space": {"type": "Box", "shape": [10**9, 10**9], "dtype": "<f4"}}}, "A space of"),
        ({"_last_obs": {"$array": ["parameters/policy/q_net.output__bias", "|O", [1]]}}, "no plain data"),
        ({"evaluation": "os:system"}, "evaluation"),
    ],
)
def test_a_model_whose_attributes_harm(trained: Path, attributes: dict[str, Any], message: str) -> None:
    path = with_attributes(trained, **attributes)
    refused(lambda: StaQ.load(path, device="cpu"), message)


def test_a_model_whose_zip_harms(trained: Path) -> None:
    good = members_of(trained / "model.zip")
    data = json.loads(good["data"])
    without = {name: content for name, content in good.items() if name != "tensors.safetensors"}
    for members, message in (
        (good | {"../../executed": b"x"}, "'../../executed', which is no part of a model"),
        (good | {"policy.pth": pickle.dumps(Payload())}, "'policy.pth', which is no part"),
        (without, "has no 'tensors.safetensors'"),
        ({"system_info.txt": b""}, "has no 'data'"),
        (good | {"data": f'{{"format": {DEEP}}}'}, "nested too deeply"),
        (good | {"data": "NaN" * 10}, "is damaged"),
        (good | {"data": json.dumps(data | {"format": "staq-model-9", "version": "7.0"})}, "staq-model-9.*staq 7.0"),
        (good | {"data": json.dumps(data | {"class": "ExactPMD"})}, "use ExactPMD.load"),
        (good | {"tensors.safetensors": struct.pack("<Q", 2**60)}, "a header of 1,152,921,504,606,846,976 bytes"),
        (good | {"tensors.safetensors": good["tensors.safetensors"][:-9]}, "is damaged"),
    ):
        path = zipped(members)
        refused(lambda path=path: StaQ.load(path, device="cpu"), message)  # type: ignore[misc]
    with pytest.warns(UserWarning, match="Duplicate name"):
        path = zipped([*good.items(), ("data", good["data"])])
    refused(lambda: StaQ.load(path), "holds 'data' twice")
    refused(lambda: StaQ.load(zipped(good | {"data": b" " * 10**8}, zipfile.ZIP_DEFLATED)), "compressed")
    Path("cut.zip").write_bytes((trained / "model.zip").read_bytes()[:-100])
    refused(lambda: StaQ.load("cut.zip"), "no zip of a model, or damaged")


def test_a_model_whose_tensors_harm(trained: Path) -> None:
    name = "parameters/policy/q_net.output__bias"

    def nan(tensors: dict[str, torch.Tensor]) -> None:
        tensors[name][0, 0] = float("nan")

    for change, message in (
        (nan, f"NaN or infinity in {name}"),
        (lambda tensors: tensors.update({name: tensors[name].double()}), "of float64, and .* of float32 is described"),
        (lambda tensors: tensors.update({name: tensors[name][:, :1].clone()}), r"\[2, 1\] of float32"),
        (lambda tensors: tensors.pop(name), "KeyError"),
    ):
        path = with_tensors(trained, change)
        refused(lambda path=path: StaQ.load(path, device="cpu"), message)  # type: ignore[misc]


def test_a_pickle_that_is_trusted(trained: Path) -> None:
    """SB3's own way of writing a zip and a replay, as older versions did."""
    model = StaQ.load(trained / "model.zip", device="cpu")
    model.load_replay_buffer(trained / "replay")
    OffPolicyAlgorithm.save(model, "old.zip")
    save_to_pkl("old", model.replay)
    refused(lambda: StaQ.load("old.zip"), "is pickled.*trust=True")
    again = StaQ.load("old.zip", device="cpu", trust=True)
    again.load_replay_buffer("old", trust=True)
    assert torch.equal(again.replay.observations, model.replay.observations)
    obs = model.replay.observations[:9].numpy()
    np.testing.assert_array_equal(again.logits(obs), model.logits(obs))
    again.policy.improvement.stack.clear()
    again.policy.improvement.stack.load_state_dict({"_extra_state": model.policy.improvement.as_stack()})
    np.testing.assert_array_equal(again.logits(obs), model.logits(obs))


def test_zips_of_others() -> None:
    DQN("MlpPolicy", "CartPole-v1", device="cpu", buffer_size=10).save("dqn.zip")
    for trust in (False, True):
        refused(lambda trust=trust: StaQ.load("dqn.zip", trust=trust), "DQN, not of staq: load it with DQN.load")  # type: ignore[misc]
    pickled = {"policy_class": {":serialized:": a_pickle()["$pickle"], "__module__": "staq.policies"}}
    refused(lambda: StaQ.load(zipped({"data": json.dumps(pickled), "policy.pth": b""})), "is pickled.*trust=True")


def test_parameters_and_policies_alone(trained: Path) -> None:
    model = small_model(policy_kwargs={"net_arch": [4]})
    before = {name: w.clone() for name, w in model.policy.state_dict().items()}
    path = with_attributes(trained, gamma=a_pickle())
    refused(lambda: model.set_parameters(path), "gamma as a pickle")
    small_model(policy_kwargs={"net_arch": [5]}).save("other.zip")
    refused(lambda: model.set_parameters("other.zip"), "does not fit this model.*size mismatch")
    torch.save({"state_dict": {}, "data": Payload()}, "policy.pt")
    refused(lambda: MlpPolicy.load("policy.pt"), "it has no 'data'|which no model's file does|no part of")
    assert all(torch.equal(w, before[name]) for name, w in model.policy.state_dict().items())


# ---------------------------------------------------------------------- replays


def test_replays(trained: Path) -> None:
    model = small_model(policy_kwargs={"net_arch": [4]})
    rows = load((trained / "replay.safetensors").read_bytes())
    metadata = {"format": "staq-replay-1", "next_row": "3"}
    for content, message in (
        (pickle.dumps(Payload()), "is a pickle.*trust=True"),
        (b"", "is damaged"),
        (struct.pack("<Q", 2**60) + b"{}", "is damaged: a header"),
        (save(rows), "holds no replay"),
        (save({**rows, "rewards": torch.full_like(rows["rewards"], torch.nan)}, metadata), "NaN or infinity"),
        (save({**rows, "actions": rows["actions"] + 7}, metadata), "none of .* choices"),
        (save({**rows, "rewards": rows["rewards"][:3].clone()}, metadata), "of shape"),
        (save({**rows, "accumulated": rows["rewards"].clone()}, metadata), "not the transitions"),
    ):
        Path("hostile").write_bytes(content)
        refused(lambda: model.load_replay_buffer("hostile"), message)
        assert model.replay.size() == 0


# ---------------------------------------------------------------------- checkpoints


def a_checkpoint(content: Any, metadata: dict[str, str]) -> Path:
    known = {"format": str(atomic_files.FORMAT), "version": "0.1.0", "digest": "0" * 32}
    data = bytearray(save({}, known | {"content": json.dumps(content)} | metadata))
    start = data.index(b'"digest":"') + 10
    data[start : start + 32] = atomic_files._digest(memoryview(bytes(data)), start)
    folder = Path("checkpoints")
    folder.mkdir(exist_ok=True)
    (folder / "state-000001.safetensors").write_bytes(data)
    return folder


def test_checkpoints() -> None:
    """With digests that fit: these detect damage, and no forgery."""
    for content, metadata, message in (
        ({"learned": a_pickle()}, {}, "pickle.*is nothing that this file may hold"),
        ({"learned": {"$class": "os.system"}}, {}, "class.*is nothing that"),
        ({}, {"content": DEEP}, "nested too deeply"),
        ({}, {"format": "9", "version": "7.0"}, "format 9, written by staq 7.0.*go on with the version"),
        ({"learned": {"$tensor": "../../elsewhere"}}, {}, "elsewhere"),
        ([], {}, "no table"),
    ):
        folder = a_checkpoint(content, metadata)
        refused(lambda folder=folder: resume(small_model(), folder), message)  # type: ignore[misc]
    (folder / "state-000001.safetensors").write_bytes(pickle.dumps(Payload()))
    refused(lambda: resume(small_model(), folder), "No checkpoint in")


def test_checkpoints_of_an_older_version() -> None:
    Path("old").mkdir()
    torch.save({"format": 3}, "old/state-000001.pt")
    refused(lambda: resume(small_model(), "old"), "format 3, which staq 0.1.0 wrote.*config.json.*begin it anew")
    refused(lambda: small_model().learn(200, callback=Checkpoints("old")), "format 3")


def test_a_checkpoint_with_nan_is_passed_over(trained: Path) -> None:
    state = atomic_files.read(max((trained / "checkpoints").glob("state-*")))
    state["learned"]["q_net"]["output__bias"][0, 0] = torch.nan
    Path("spoiled").mkdir()
    atomic_files.write_atomically(Path("spoiled/state-000002.safetensors"), state)
    refused(lambda: resume(small_model(), "spoiled"), "NaN or infinity in learned/q_net/output__bias")


def test_what_a_snapshot_of_environments_may_change() -> None:
    from staq.storage.environment_snapshot import CannotRestore, restore

    for state, message in (
        ({"__object__": {"__class__": 5}}, "__class__ is no attribute"),
        ({"__object__": {"dice": {"__generator__": {"bit_generator": "fromfile"}}}}, "'fromfile', which is"),
    ):
        with pytest.raises(CannotRestore, match=message):
            restore(TinyExtractor.__new__(TinyExtractor), state)


# ---------------------------------------------------------------------- exports


def test_exports(trained: Path) -> None:
    description = json.loads((trained / "export" / "policy.json").read_text())
    weights = (trained / "export" / "policy.safetensors").read_bytes()
    tensors = load(weights)
    spoiled = {**tensors, "stack.output.bias": torch.full_like(tensors["stack.output.bias"], torch.nan)}
    stack = description["stack"]
    for changes, content, message in (
        ({"net_arch": [10**9]}, weights, r"q_net.mlp.0.bias is \[2, 4\] of float32, and \[2, 1000000000\]"),
        ({"net_arch": [10**10, 10**10]}, weights, "net_arch of 10000000000: a file may ask for"),
        ({"n_atoms": 10**9}, weights, "n_atoms of 1000000000"),
        ({"action_space": {"type": "Discrete", "n": 10**12, "start": 0}}, weights, "A space of"),
        ({"stack": stack | {"relative_weights": [1.0]}}, weights, "has 1 relative_weights, for which"),
        ({"stack": stack | {"relative_weights": [1.0, 1.0, 1.0]}}, weights, "has 3 relative_weights"),
        ({"stack": stack | {"relative_weights": [1.0, float("nan")]}}, weights, "numbers that are not finite"),
        ({"stack": stack | {"prefactor": float("inf")}}, weights, "not finite: .*prefactor=inf"),
        ({"stack": stack | {"spans": [[0, 0]]}}, weights, "each needs a first and a last push"),
        ({"stack": stack | {"spans": [[0], [1]]}}, weights, "each needs a first and a last push"),
        ({}, save(spoiled), "NaN or infinity in stack.output.bias"),
        ({}, struct.pack("<Q", 2**60) + weights[8:], "a header of"),
        ({}, weights[:-3], "is damaged"),
    ):
        Path("export").mkdir(exist_ok=True)
        Path("export/policy.json").write_text(json.dumps(description | changes))
        Path("export/policy.safetensors").write_bytes(content)
        refused(lambda: load_policy("export"), message)
    Path("export/policy.json").write_text(DEEP)
    refused(lambda: load_policy("export"), "nested too deeply")


def test_an_absurd_memory_needs_no_memory(trained: Path) -> None:
    description = json.loads((trained / "export" / "policy.json").read_text())
    Path("export").mkdir()
    Path("export/policy.json").write_text(json.dumps(description | {"memory_size": 10**15}))
    Path("export/policy.safetensors").write_bytes((trained / "export" / "policy.safetensors").read_bytes())
    assert load_policy("export")[0].improvement.memory_size == 2


# ---------------------------------------------------------------------- and the honest ones


def test_what_is_saved_unpickles_nothing(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: Any, **__: Any) -> None:
        raise AssertionError("loading must not unpickle")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, forbidden)
    model = StaQ.load(trained / "model.zip", device="cpu", print_system_info=True)
    assert model.iteration == 2
    model.load_replay_buffer(trained / "replay")
    assert model.replay.size() == 400
    model.set_parameters(trained / "model.zip")
    model.policy.save("policy")
    MlpPolicy.load("policy")
    resume(small_model(policy_kwargs={"net_arch": [4]}), trained / "checkpoints")
    assert not re.search(rb"\$pickle", (trained / "model.zip").read_bytes())


def test_a_class_of_ones_own_needs_trust_or_itself() -> None:
    kwargs = {"features_extractor_class": TinyExtractor, "net_arch": [4]}
    model, file = small_model(policy_kwargs=kwargs), io.BytesIO()
    model.save(file)
    refused(lambda: StaQ.load(io.BytesIO(file.getvalue())), "policy_kwargs as a pickle")
    for given in ({"trust": True}, {"custom_objects": {"policy_kwargs": kwargs}}):
        loaded = StaQ.load(io.BytesIO(file.getvalue()), device="cpu", **given)
        assert loaded.policy_kwargs["features_extractor_class"] is TinyExtractor


def test_a_damaged_file_is_a_value_error() -> None:
    assert issubclass(DamagedFile, ValueError)
    assert issubclass(model_file.NeedsTrust, ValueError)
