"""The benchmarks run, count what they should, and the README has their last figures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium import spaces

from benchmarks.ablations import ABLATIONS
from benchmarks.floor import gemm_rate, step_flops
from benchmarks.lambda_returns import EPOCHS, MINIBATCH, N_ENVS, N_STEPS
from benchmarks.lambda_returns import full_model as lambda_model_of
from benchmarks.plain import phases
from benchmarks.plain_pqn import LAYERS, Patches, model_of
from benchmarks.report import BEGIN, END, headlines, markdown, publish
from staq.baselines.networks import SmallImage
from staq.experiments.timing import dqn_like_staq, dqn_ms, merged_sizes

ROOT = Path(__file__).parent.parent


def test_flops_of_a_step() -> None:
    """By hand for SpaceInvaders: Conv(6→16, 3×3) on 8×8 positions, 1024→128→4, two networks, batches of 256."""
    conv, mlp, output = 2 * 64 * 54 * 16, 2 * 1024 * 128, 2 * 128 * 4
    flops = step_flops("MinAtar/SpaceInvaders-v1", 300)
    assert flops["gradient"] == 512 * (2 * conv + 3 * mlp + 3 * output)
    assert flops["stack row"] == 600 * (conv + mlp + output)
    assert flops["targets"] == pytest.approx(120e6, rel=0.01)
    assert flops["refresh"] == pytest.approx(15e6, rel=0.01)


@pytest.mark.parametrize("layers", ["vmap", "batched"])
def test_the_plain_scheme_runs(layers: str) -> None:
    assert all(ms > 0 for ms in phases("MinAtar/Breakout-v1", 2, layers).values())


def test_dqn_runs_and_the_peak_is_found() -> None:
    assert dqn_ms(dqn_like_staq("MinAtar/Breakout-v1"), steps=5, samples=1) > 0
    assert gemm_rate(1) > 1e8


@pytest.mark.parametrize("layers", LAYERS)
def test_the_plain_pqn_learns(layers: str) -> None:
    """A rollout and its passes: every weight moves, and the environments' time is told from the rest."""
    model = model_of("MinAtar/Breakout-v1", layers)
    before = {name: w.detach().clone() for name, w in model.policy.q_net.named_parameters()}
    with model.env.timed() as times:  # type: ignore[union-attr]
        model.learn(N_ENVS * N_STEPS)
    assert (model.n_epochs, model.batch_size) == (EPOCHS, MINIBATCH)
    assert not any(torch.equal(before[name], w) for name, w in model.policy.q_net.named_parameters())
    assert 0 < times["env"] < times["outside"]


def test_patches_are_the_convolution() -> None:
    """With the same weights, in another order."""
    space = spaces.Box(0, 1, (10, 10, 4))
    patches, conv2d = Patches(space), SmallImage(space, norm=True)
    product, convolution = patches.layers[0], conv2d.layers[0]
    with torch.no_grad():
        product.weight.copy_(convolution.weight.flatten(1))
        product.bias.copy_(convolution.bias)
    boards = torch.rand(3, 10, 10, 4)
    places = conv2d(boards).unflatten(1, (16, 8, 8)).permute(0, 2, 3, 1).flatten(1)
    torch.testing.assert_close(patches(boards), places)


def test_the_lambda_scenario_is_the_presets() -> None:
    model = lambda_model_of("MinAtar/Breakout-v1", 3)
    assert (model.n_envs, model.policy_update_interval) == (N_ENVS, N_ENVS * N_STEPS)
    model.learn(N_ENVS * N_STEPS)
    assert (model.n_epochs, model.batch_size) == (EPOCHS, MINIBATCH)  # type: ignore[attr-defined]
    assert len(model.policy.improvement.stack) == 3  # type: ignore[arg-type]


@pytest.mark.parametrize(("pushes", "networks"), [(300, 20), (300, 60), (1000, 40)])
def test_the_merged_scenario_stands_for_all_pushes(pushes: int, networks: int) -> None:
    sizes = merged_sizes(pushes, networks)
    assert sum(sizes) == pushes
    assert len(sizes) == max(networks, len(merged_sizes(pushes, 1)))
    model = lambda_model_of("MinAtar/Breakout-v1", pushes, networks)
    stack = model.policy.improvement.stack  # type: ignore[attr-defined]
    assert (len(stack), stack.n_pushed) == (len(sizes), pushes)
    beta = model.step_size.beta
    assert sum(stack.relative_weights) == pytest.approx((1 - beta**pushes) / (1 - beta))
    assert stack.relative_weights[-1] == 1.0, "the newest push"


def test_the_merged_scenario_merges() -> None:
    model = lambda_model_of("MinAtar/Breakout-v1", 300, 20)
    model.learn(4 * N_ENVS * N_STEPS)
    stack = model.policy.improvement.stack  # type: ignore[attr-defined]
    assert stack.n_pushed == 304
    assert len(stack) < len(merged_sizes(300, 20)) + 4


def test_the_readmes_have_the_last_figures() -> None:
    results = json.loads((ROOT / "benchmarks" / "results" / "latest.json").read_text())
    assert f"{BEGIN}\n{headlines(results)}\n{END}" in (ROOT / "README.md").read_text()
    assert f"{BEGIN}\n{markdown(results)}\n{END}" in (ROOT / "benchmarks" / "README.md").read_text()


def logits_without(name: str) -> np.ndarray:
    """Of a small model that learned without an optimisation: in a process of its own, since it stays switched off."""
    script = (
        "import sys, torch; from benchmarks.ablations import ABLATIONS; from tests.conftest import small_model;"
        "torch.set_num_threads(1); sys.argv[1] == 'none' or ABLATIONS[sys.argv[1]]();"
        "model = small_model('MinAtar/Breakout-v1', memory_size=12).learn(600);"
        "obs = model.replay.observations[:50].numpy();"
        "print(*model.logits(obs).flatten().tolist())"
    )
    done = subprocess.run([sys.executable, "-c", script, name], capture_output=True, text=True, check=True, cwd=ROOT)
    return np.array(done.stdout.split(), dtype=float)


@pytest.fixture(scope="module")
def logits_with_all() -> np.ndarray:
    return logits_without("none")


@pytest.mark.parametrize("name", ABLATIONS)
def test_what_is_computed_stays_the_same_without_an_optimisation(name: str, logits_with_all: np.ndarray) -> None:
    assert np.ptp(logits_with_all) > 1e-3
    tolerance = 1e-3 * np.ptp(logits_with_all)
    np.testing.assert_allclose(logits_without(name), logits_with_all, rtol=1e-2, atol=tolerance)


def test_publishing_replaces_the_table_only(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"above\n{BEGIN}\nold\n{END}\nbelow\n")
    publish("new", readme)
    assert readme.read_text() == f"above\n{BEGIN}\nnew\n{END}\nbelow\n"
