"""Hashes of what a short training computes: a change of the code's shape must not change them.

    python -m benchmarks.fingerprints                                       every algorithm on CartPole, StaQ elsewhere
    python -m benchmarks.fingerprints --steps 5000 natgrad:CartPole-v1      others

Run it before and after, on one machine, with and without compiled kernels (``STAQ_COMPILE=0``), and compare the lines.
They differ between kinds of CPU and versions of PyTorch.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Mapping

import torch

from staq import registry
from staq.cli import presets
from staq.cli.runs import build, configured
from staq.envs.make import make_envs
from staq.loop import PolicyMirrorDescent

USUAL = [f"{algo}:CartPole-v1" for algo in registry.ours()] + ["staq:MinAtar/Breakout-v1", "staq:Pendulum-v1"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=USUAL, metavar="ALGO:ENV")
    parser.add_argument("--steps", type=int, default=15_000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for case in options.cases:
        algo, env_id = case.split(":", 1)
        config = configured(env_id, presets.for_environment(env_id, algo), algo, timesteps=options.steps)
        model = build(config, make_envs(env_id, config.n_envs))
        assert isinstance(model, PolicyMirrorDescent)
        model.learn(options.steps, log_interval=None)
        print(algo, env_id, *(f"{name} {digest(part)}" for name, part in parts(model).items()), flush=True)


def parts(model: PolicyMirrorDescent) -> dict[str, Mapping[str, torch.Tensor]]:
    """Every number of a model."""
    stack = model.policy.improvement.as_stack()
    weights = {"relative_weights": torch.tensor(stack["relative_weights"], dtype=torch.float64)}
    transitions = {name: getattr(model.replay, name) for name in model.replay.transition}
    return {
        "weights": model.policy.q_net.weights,
        "stack": stack["networks"] | weights,
        "replay": transitions | {"accumulated": model.replay.accumulated.values},
    }


def digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """Of names and bytes."""
    content = hashlib.sha256()
    for name in sorted(tensors):
        content.update(name.encode())
        content.update(tensors[name].detach().contiguous().cpu().numpy().tobytes())
    return content.hexdigest()[:16]


if __name__ == "__main__":
    main()
