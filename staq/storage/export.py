"""A policy to give away: weights in safetensors, the rest in JSON, and nothing that runs on load."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable
from functools import partial as partially
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import nn

from staq.actions import BoundaryActions
from staq.hyperparameters import check_device
from staq.networks.conv_mlp import ConvMlp, activation_named
from staq.policies import StaQPolicy
from staq.policy_improvement.stack import Stack
from staq.storage.hub import downloaded, is_on_hub
from staq.storage.plain_data import parsed, read_safetensors
from staq.storage.policy_shapes import EXTRACTORS, check_fits
from staq.storage.spaces import describe_space, space_from
from staq.version import __version__

if TYPE_CHECKING:
    from staq.sb3_interface import SB3Interface

FORMAT = "staq-policy-1"
WEIGHTS, DESCRIPTION = "policy.safetensors", "policy.json"


def export_model(model: SB3Interface, path: str | Path, format: str | None = None) -> Path:
    """Writes a model's policy into the folder ``path``, or as one file for ONNX, with the name of its environment."""
    write = writer(format or ("onnx" if Path(path).suffix == ".onnx" else "safetensors"))
    if model.get_vec_normalize_env() is not None:
        warnings.warn(
            "The exported policy expects observations normalised by this VecNormalize: export its statistics too, "
            "with vec_env.save(path).",
            stacklevel=3,
        )
    return write(model.policy, path, *environment_of(model))


def writer(format: str) -> Callable[..., Path]:
    """What writes policies in a format; the parameters of all are the first of ``export_policy``."""
    if format == "safetensors":
        return export_policy
    if format == "onnx":
        from staq.storage.onnx_export import export_onnx

        return export_onnx
    raise ValueError(f"format={format!r}: it must be 'safetensors' or 'onnx'.")


def environment_of(model: SB3Interface) -> tuple[str | None, bool]:
    """The name of a model's environment, if it has one, and whether its actions are boundary actions there."""
    spec = model.env.get_attr("spec")[0] if model.env is not None and model.env.has_attr("spec") else None
    wrappers = () if spec is None else spec.additional_wrappers
    boundary = any(wrapper.name == BoundaryActions.__name__ for wrapper in wrappers)
    return None if spec is None else spec.id, boundary


def export_policy(
    policy: StaQPolicy,
    path: str | Path,
    environment: str | None = None,
    boundary_actions: bool = False,
    condensed: dict[str, Any] | None = None,
) -> Path:
    """Writes a policy into the folder ``path``.

    :param environment: name of the environment that it is for
    :param boundary_actions: whether its actions are those of ``BoundaryActions`` around that environment
    :param condensed: how far it is from the policy that it was condensed from, if it was
    """
    architecture, improvement = policy.architecture, policy.improvement
    layers = _describe_layers(policy)
    stack = improvement.as_stack()
    tensors = {f"stack.{name}": w for name, w in stack.pop("networks").items()}
    tensors |= {f"q_net.{name}": w.detach() for name, w in policy.q_net.weights.items()}
    description = {
        "format": FORMAT,
        "version": __version__,
        "environment": environment,
        "boundary_actions": boundary_actions,
        "observation_space": describe_space(policy.observation_space),
        "action_space": describe_space(policy.action_space),
        **layers,
        "normalize_images": architecture.normalize_images,
        "n_critics": int(policy.n_critics),
        "n_atoms": int(policy.n_atoms),
        "masked": policy.masked,
        "memory_size": improvement.memory_size,
        "stack": stack,
    }
    if condensed is not None:
        description["condensed"] = condensed
    folder = Path(path)
    if folder.exists() and not (folder.is_dir() and {file.name for file in folder.iterdir()} <= {WEIGHTS, DESCRIPTION}):
        raise FileExistsError(f"{folder} holds something other than an exported policy: name another folder.")
    # Both files appear under the folder's name at once: a policy never has the weights of another.
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        save_file({name: w.contiguous().cpu() for name, w in tensors.items()}, partial / WEIGHTS)
    except SafetensorError as error:  # how safetensors reports a full disk
        shutil.rmtree(partial, ignore_errors=True)
        raise OSError(f"The policy could not be exported to {folder}: {error}. Make room, then resume.") from error
    (partial / DESCRIPTION).write_text(json.dumps(description, indent=2) + "\n")
    if folder.exists():
        shutil.rmtree(folder)
    partial.rename(folder)
    return folder


def _describe_layers(policy: StaQPolicy) -> dict[str, Any]:
    """The arguments that make a policy's networks, as JSON."""
    architecture, layers = policy.architecture, policy.layers
    if isinstance(architecture, ConvMlp):
        made_of: nn.Module = architecture.activation
        images = {"conv_arch": architecture.conv_arch, "channels_last": architecture.channels_last}
        extractor = {}
    else:
        made_of, images = layers["activation_fn"](), {"conv_arch": [], "channels_last": False}
        kind, name = layers["extractor"], layers["extractor"].__name__
        if EXTRACTORS.get(name) is not kind:
            raise ValueError(
                f"The features extractor {name} is code, which an export does not carry: use model.save(), "
                "and give your class to whoever loads it."
            )
        extractor = {"features_extractor": {"class": name, "arguments": layers["extractor_kwargs"]}}
    activation = type(made_of).__name__
    if not hasattr(nn, activation) or repr(getattr(nn, activation)()) != repr(made_of):
        raise ValueError(
            f"The activation {made_of!r} is not one of torch.nn with its default arguments, which is all that an "
            "export can name: use model.save()."
        )
    return {"net_arch": layers["net_arch"], **images, "activation_fn": activation, "norm": layers["norm"], **extractor}


def load_policy(path: str | Path, device: torch.device | str = "cpu") -> tuple[StaQPolicy, dict[str, Any]]:
    """The policy of an exported folder, or of "hf:USER/REPO" on the Hugging Face hub, and its description."""
    check_device(device)
    folder = downloaded(str(path), [DESCRIPTION, WEIGHTS]) if is_on_hub(path) else Path(path)
    try:
        description = parsed((folder / DESCRIPTION).read_bytes(), str(folder / DESCRIPTION))
        tensors = read_safetensors((folder / WEIGHTS).read_bytes(), str(folder / WEIGHTS))
    except (FileNotFoundError, NotADirectoryError) as error:
        hint = " StaQ.load loads the zip of a model." if folder.is_file() else ""
        if folder.suffix == ".onnx":
            hint = " An ONNX graph is run by onnxruntime."
        if (folder / "model" / DESCRIPTION).exists():
            hint = f" That of this run is {folder / 'model'}."
        raise FileNotFoundError(
            f"{folder} is not an exported policy: {DESCRIPTION} and {WEIGHTS} belong in it.{hint}"
        ) from error
    found = description.get("format") if isinstance(description, dict) else None
    if found != FORMAT:
        raise ValueError(f"{folder / DESCRIPTION} has format {found!r}, this version reads {FORMAT!r}.")
    try:
        return _policy_from(description, tensors, device), description
    except (KeyError, TypeError, AttributeError, AssertionError, RuntimeError, RecursionError) as error:
        raise ValueError(
            f"The exported policy in {folder} does not fit its own description ({type(error).__name__}: {error})."
        ) from error


def _policy_from(description: dict[str, Any], tensors: dict[str, torch.Tensor], device: Any) -> StaQPolicy:
    arguments: dict[str, Any] = dict(
        observation_space=space_from(description["observation_space"]),
        action_space=space_from(description["action_space"]),
        n_critics=description["n_critics"],
        n_atoms=description.get("n_atoms", 7),  # exports from before there were any have Discrete actions
        net_arch=description["net_arch"],
        conv_arch=description["conv_arch"],
        activation_fn=activation_named(description["activation_fn"]),
        channels_last=description["channels_last"],
        normalize_images=description["normalize_images"],
        norm=description.get("norm"),  # exports from before there was one have none
        **_extractor(description),
    )
    check_fits(StaQPolicy, arguments, {k.removeprefix("q_net."): w for k, w in tensors.items() if k[:6] == "q_net."})
    memory_size = description["memory_size"]
    if memory_size is not None:  # nothing more will be pushed: no room is needed for it
        memory_size = max(1, len(description["stack"]["relative_weights"]))
    settings = Stack.Settings(memory_size=memory_size)
    policy = StaQPolicy(
        lr_schedule=lambda _: 0.0, make_improvement=partially(Stack, settings=settings), **arguments
    ).to(device)
    policy.masked = description.get("masked", False)
    with torch.no_grad():
        for name, weight in policy.q_net.weights.items():
            weight.copy_(tensors[f"q_net.{name}"])
    networks = {name.removeprefix("stack."): w for name, w in tensors.items() if name.startswith("stack.")}
    improvement = policy.improvement
    assert isinstance(improvement, Stack)
    improvement.stack.load_state(description["stack"] | {"networks": networks})
    return policy


def _extractor(description: dict[str, Any]) -> dict[str, Any]:
    """One of SB3's own by name: nothing else is ever looked up."""
    named = description.get("features_extractor")
    if named is None:
        return {}
    return {"features_extractor_class": EXTRACTORS[named["class"]], "features_extractor_kwargs": named["arguments"]}
