"""What is compiled equals what is not, is compiled once, and is done without where it cannot be had."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from staq.networks import kernels
from staq.networks.architecture import OUTPUT_WEIGHT
from staq.networks.conv_mlp import ConvMlp, affine, dense
from staq.networks.ensemble import QEnsemble
from staq.networks.gradients import BoardConvolution, BoardLayer, ClosedForm, Convolution, HiddenLayer
from staq.policy_improvement.q_stack import QStack

BATCH = 24


@pytest.fixture(autouse=True)
def forget_what_was_loaded() -> Iterator[None]:
    kernels.load.cache_clear()
    yield
    kernels.load.cache_clear()


@pytest.fixture
def compiler() -> None:
    if kernels.load("boards") is None:
        pytest.skip("there is no C compiler")


def networks(n: int, shape: tuple[int, int, int], kernel: int = 3, **arguments: Any) -> QEnsemble:
    torch.manual_seed(0)
    space = spaces.Box(0, 1, shape, dtype=bool)  # type: ignore[arg-type]
    made = QEnsemble(ConvMlp(space, 3, net_arch=[64], conv_arch=[(16, kernel, 1)], **arguments), n)
    with torch.no_grad():
        made.weights[OUTPUT_WEIGHT].normal_()
    return made


def found(ensemble: QEnsemble, kind: type, boards: torch.Tensor, error: torch.Tensor) -> dict[str, torch.Tensor]:
    """Outputs and gradients, by a first layer of a kind."""
    closed = ClosedForm(ensemble, BATCH)
    assert type(closed.layers[0]) is kind
    assert type(closed.layers[1]) is (BoardLayer if kind is BoardConvolution else HiddenLayer)
    outputs = {"outputs": closed.forward(boards).clone()}
    closed.backward(error)
    return outputs | {name: w.grad.clone() for name, w in ensemble.weights.items() if w.grad is not None}


@pytest.mark.parametrize("norm", [None, "layer"])
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("n_networks", [1, 2, 5])
@pytest.mark.parametrize(
    ("shape", "kernel"),
    [((10, 10, 4), 3), ((10, 10, 7), 3), ((10, 10, 10), 3), ((3, 5, 1), 1), ((9, 8, 2), 8), ((5, 16, 8), 2)],
)
def test_distinct_patches_are_all_patches(
    shape: tuple[int, int, int], kernel: int, n_networks: int, threads: int, norm: Any, compiler: None, monkeypatch: Any
) -> None:
    """Boards of 15 to 1,000 bits, of many bits and of none, some alike; with layer norm and without."""
    torch.set_num_threads(threads)
    ensemble, reference = (networks(n_networks, shape, kernel, norm=norm) for _ in range(2))
    boards = torch.rand(BATCH, *shape) < 0.5 * torch.rand(BATCH, 1, 1, 1)
    boards[0], boards[1], boards[-8:] = False, True, boards[2:10]
    error = torch.randn(n_networks, 3, BATCH)
    ours = found(ensemble, BoardConvolution, boards, error)
    kernels.load.cache_clear()
    monkeypatch.setenv("STAQ_COMPILE", "0")
    plain = found(reference, Convolution, boards, error)
    assert ours.keys() == plain.keys()
    for name, expected in plain.items():
        torch.testing.assert_close(ours[name], expected, rtol=1e-4, atol=1e-4, msg=name)


def test_what_is_not_a_number_is_not_hidden(compiler: None) -> None:
    ensemble = networks(2, (10, 10, 4))
    with torch.no_grad():
        ensemble.weights["conv.0.weight"][1] = torch.nan
    outputs = ClosedForm(ensemble, BATCH).forward(torch.ones(BATCH, 10, 10, 4, dtype=torch.bool))
    assert outputs[0].isfinite().all()
    assert outputs[1].isnan().all()


def test_boards_that_were_normalised_are_multiplied(compiler: None) -> None:
    """VecNormalize makes floats of bits; and bits may follow them on the same buffers."""
    ensemble = networks(2, (10, 10, 4))
    closed = ClosedForm(ensemble, BATCH)
    bits = torch.rand(BATCH, 10, 10, 4) > 0.7
    for boards in (bits, bits.float() - 0.3, ~bits):
        expected = ensemble(boards).detach()
        torch.testing.assert_close(closed.forward(boards), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rows", [1, 4, 5, 10, 17, 50, 256])
@pytest.mark.parametrize(("inputs", "outputs"), [(1, 32), (4, 96), (54, 32), (130, 128)])
def test_a_layer_of_many_networks_is_the_product(rows: int, inputs: int, outputs: int, compiler: None) -> None:
    """For an input each and for one that they share; and for as many threads as there are networks, or fewer."""
    torch.manual_seed(0)
    weight, bias = torch.randn(3, inputs, outputs), torch.randn(3, outputs)
    for n_inputs, threads in ((1, 1), (3, 2), (3, 4)):
        torch.set_num_threads(threads)
        x = torch.randn(n_inputs, rows, inputs)
        expected = affine(weight, bias, x)
        torch.testing.assert_close(dense(weight, bias, x, rectify=False), expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(dense(weight, bias, x, rectify=True), expected.relu(), rtol=1e-4, atol=1e-5)


def test_a_layer_hides_nothing_and_refuses_nothing(compiler: None) -> None:
    """Not what is no number; not widths, types and orders that the kernel does not know."""
    weight, bias, x = torch.randn(3, 8, 64), torch.randn(3, 64), torch.randn(1, 7, 8)
    weight[1, 0, 5] = torch.nan
    found = dense(weight, bias, x, rectify=True)
    assert found[1, :, 5].isnan().all()
    assert found.isnan().sum() == 7
    weight[1, 0, 5] = 1.0
    for other in (
        (weight[..., :40].contiguous(), bias[:, :40].contiguous(), x),
        (weight.double(), bias.double(), x.double()),
        (weight.mT.contiguous().mT, bias, x),
        (weight, bias, x.mT.contiguous().mT),
    ):
        torch.testing.assert_close(dense(*other, rectify=True), affine(*other).relu())


@pytest.mark.parametrize("norm", [None, "layer"])
@pytest.mark.parametrize("threads", [1, 3])
def test_the_stack_is_the_same_policy_without_it(
    norm: Any, threads: int, compiler: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.set_num_threads(threads)
    space = spaces.Box(0, 1, (10, 10, 4), dtype=bool)  # type: ignore[arg-type]
    architecture = ConvMlp(space, 3, net_arch=[128, 64], conv_arch=[(16, 3, 1)], norm=norm)
    stack = QStack(architecture, 2, memory_size=25)
    torch.manual_seed(0)
    for _ in range(30):
        stack.push({name: torch.randn(2, *shape) for name, shape in stack.shapes.items()}, beta=0.9)
    boards = torch.rand(BATCH, 10, 10, 4) > 0.97  # half of the patches are empty
    ours = stack.accumulated(boards)
    kernels.load.cache_clear()
    monkeypatch.setenv("STAQ_COMPILE", "0")
    torch.testing.assert_close(ours, stack.accumulated(boards), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("shape", "convolution", "net_arch"),
    [
        ((10, 10, 4), (8, 3, 1), [64]),
        ((10, 10, 4), (16, 3, 2), [64]),
        ((10, 10, 4), (16, 3, 1), [48]),
        ((10, 10, 4), (16, 3, 1), []),
        ((10, 10, 13), (16, 3, 1), [64]),  # rows of 130 bits
        ((8, 8, 9), (16, 4, 1), [64]),  # patches of 144
    ],
)
def test_other_layers_are_left_to_pytorch(
    shape: tuple[int, int, int], convolution: tuple[int, int, int], net_arch: list[int], compiler: None
) -> None:
    space = spaces.Box(0, 1, shape, dtype=bool)  # type: ignore[arg-type]
    closed = ClosedForm(QEnsemble(ConvMlp(space, 3, net_arch=net_arch, conv_arch=[convolution]), 2), BATCH)
    assert type(closed.layers[0]) is Convolution


@pytest.mark.parametrize("variable", [("CC", "/bin/false"), ("CC", "no-such-compiler"), ("STAQ_COMPILE", "0")])
def test_without_a_compiler_pytorch_does_it(
    variable: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv(*variable)
    ensemble = networks(2, (10, 10, 4))
    boards = torch.rand(BATCH, 10, 10, 4) > 0.7
    closed = ClosedForm(ensemble, BATCH)
    assert type(closed.layers[0]) is Convolution
    torch.testing.assert_close(closed.forward(boards), ensemble(boards).detach())


def test_nowhere_to_write_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "not a folder"
    file.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(file))
    assert kernels.load("boards") is None


def test_it_is_compiled_once(compiler: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    compiled = []
    compile_ = kernels._compile
    monkeypatch.setattr(kernels, "_compile", lambda *a: compiled.append(a) or compile_(*a))
    for _ in range(2):
        kernels.load.cache_clear()
        assert kernels.load("boards") is not None
    assert len(compiled) == 1
    assert [path.suffix for path in (tmp_path / "staq").iterdir()] == [".so"]


def test_another_machine_gets_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Path(kernels.__file__).with_name("boards.c")
    ours = kernels._fingerprint(source, "/usr/bin/cc")
    assert ours == kernels._fingerprint(source, "/usr/bin/cc")
    monkeypatch.setattr("platform.platform", lambda: "another")
    assert ours != kernels._fingerprint(source, "/usr/bin/cc")


def test_the_same_threads_give_the_same_numbers(compiler: None) -> None:
    torch.set_num_threads(2)
    ensemble = networks(2, (10, 10, 4))
    boards = torch.rand(BATCH, 10, 10, 4) > 0.7
    error = torch.randn(2, 3, BATCH)
    first, second = (found(ensemble, BoardConvolution, boards, error) for _ in range(2))
    for name, values in first.items():
        np.testing.assert_array_equal(values, second[name], err_msg=name)
