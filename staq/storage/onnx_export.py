"""A policy as one ONNX graph, for programs without PyTorch: observation → logits, probabilities, greedy action."""

from __future__ import annotations

import json
import logging
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import nn

from staq.actions.masks import forbid
from staq.networks.architecture import OUTPUT_BIAS, OUTPUT_WEIGHT
from staq.networks.conv_mlp import ConvMlp
from staq.policies import StaQPolicy
from staq.policy_improvement.mirror_descent import centred
from staq.storage.spaces import describe_space
from staq.version import __version__

OBSERVATION, MASKS = "observation", "action_masks"
OUTPUTS = ["logits", "probabilities", "action"]


def export_onnx(
    policy: StaQPolicy, path: str | Path, environment: str | None = None, boundary_actions: bool = False
) -> Path:
    """Writes a policy into the file ``path``; its metadata say, as JSON under "staq", what it is for.

    Inputs have a first axis of any size: "observation", or one per key of a Dict space, in the space's own type, and
    "action_masks" if the policy was trained with masks. Outputs are "logits" and "probabilities", float64 [B, A], and
    "action", the likeliest one as the environment takes it.
    """
    file = Path(path)
    if file.suffix != ".onnx" or file.is_dir():
        raise ValueError(f"{file}: an ONNX policy is one file whose name ends in .onnx.")
    try:
        import onnxscript  # noqa: F401  # by which PyTorch exports
    except ImportError as error:
        raise ModuleNotFoundError("Exporting to ONNX needs a package of an extra: pip install 'staq[onnx]'") from error
    file.parent.mkdir(parents=True, exist_ok=True)
    inputs = _examples(policy)
    with torch.no_grad(), _quietly():
        batches = tuple({0: torch.export.Dim("batch")} for _ in inputs)  # of any size
        exported = torch.export.export(Graph(policy), tuple(inputs.values()), dynamic_shapes={"inputs": batches})
        names: Any = {"input_names": list(inputs), "output_names": OUTPUTS}
        program = torch.onnx.export(exported, dynamo=True, verbose=False, **names)
    assert program is not None
    described = {
        "version": __version__,
        "environment": environment,
        "boundary_actions": boundary_actions,
        "observation_space": describe_space(policy.observation_space),
        "action_space": describe_space(policy.action_space),
    }
    program.model.metadata_props["staq"] = json.dumps(described)
    program.save(file)
    return file


class Graph(nn.Module):
    """A policy as a function of arrays, whose networks are constants.

    Hidden layers are the architecture's own. The weights of the sum are folded into the output layers, centred over
    actions, and their product is in float64, as logits are large where rewards are.
    """

    def __init__(self, policy: StaQPolicy) -> None:
        super().__init__()
        self.architecture, self.codec, self.masked = policy.architecture, policy.codec, policy.masked
        factors, stack = self.codec.factors, policy.improvement.as_stack()
        networks = stack["networks"]
        if not networks:
            raise ValueError("The policy has no networks yet and is uniform: call learn() before it is exported.")
        self.networks = {name: w.detach().cpu() for name, w in networks.items()}
        output_weight, output_bias = (self.networks[name].double() for name in (OUTPUT_WEIGHT, OUTPUT_BIAS))
        shares = torch.tensor(stack["relative_weights"], dtype=torch.float64)
        shares = (stack["prefactor"] / policy.n_critics * shares).repeat_interleave(policy.n_critics)
        self.weight = factors.each(partial(centred, dim=1), output_weight, dim=1) * shares[:, None, None]
        self.bias = (factors.each(centred, output_bias) * shares[:, None]).sum(0)

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        masks = inputs[-1] if self.masked else None
        seen = inputs[:-1] if self.masked else inputs
        hidden = self._hidden(self._inputs([obs.byte() if obs.dtype == torch.bool else obs for obs in seen]))
        logits = torch.matmul(self.weight, hidden.double().transpose(1, 2)).sum(0).t() + self.bias  # [B, A]
        allowed, factors = forbid(logits, masks), self.codec.factors
        return forbid(logits, masks, -math.inf), factors.softmax(allowed), self._action(factors.likeliest(allowed))

    def _inputs(self, seen: list[torch.Tensor]) -> Any:
        """What the architecture's ``hidden`` starts from."""
        if self.architecture.parts is None:
            return self.architecture.inputs(seen[0])
        return self.architecture.inputs_of_parts(dict(zip(self.architecture.parts.parts, seen, strict=True)))

    def _hidden(self, inputs: Any) -> torch.Tensor:
        """→ [N, B, hidden_size]"""
        if isinstance(self.architecture, ConvMlp):
            return self.architecture.hidden(self.networks, inputs)
        # One by one: vmap makes a graph for one size of the batch only.
        each = [{name: w[i : i + 1] for name, w in self.networks.items()} for i in range(len(self.weight))]
        return torch.cat([self.architecture.hidden(network, inputs) for network in each])

    def _action(self, indices: torch.Tensor) -> torch.Tensor:
        """``ActionCodec.actions`` of tensors."""
        space: Any = self.codec.space
        parts = indices.reshape(-1, len(self.codec.factors.sizes))
        if self.codec.atoms is not None:
            chosen = torch.as_tensor(self.codec.atoms)[torch.arange(parts.shape[1]), parts]
        else:
            chosen = parts + torch.as_tensor(self.codec.start.reshape(-1))
        kind = torch.as_tensor(np.zeros(1, space.dtype)).dtype
        return chosen.to(kind).reshape(-1, *space.shape)


def _examples(policy: StaQPolicy) -> dict[str, torch.Tensor]:
    """A batch of every input, by name."""
    space = policy.observation_space
    parts = space.spaces if isinstance(space, spaces.Dict) else {OBSERVATION: space}
    given = {name: torch.as_tensor(np.stack([part.sample()] * 2)) for name, part in parts.items()}
    if policy.masked:
        given[MASKS] = torch.ones(2, policy.codec.factors.n_outputs, dtype=torch.bool)
    return given


@contextmanager
def _quietly() -> Iterator[None]:
    """PyTorch's exporter speaks of packages that are not needed here, and of what it will itself deprecate."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)
