"""Chunk sizes follow the device."""

from __future__ import annotations

import torch

from staq.networks.chunks import CPU_BLOCK, CPU_CHUNK, block_size, chunk_size, chunks


def test_every_row_once_and_none_too_many() -> None:
    cpu = torch.device("cpu")
    for n in (0, 1, CPU_CHUNK, CPU_CHUNK + 1, 3 * CPU_CHUNK - 1):
        slices = list(chunks(n, cpu))
        assert [i for part in slices for i in range(n)[part]] == list(range(n))
        assert all(part.stop - part.start <= CPU_CHUNK for part in slices)


def test_a_gpu_has_larger_ones() -> None:
    cuda = torch.device("cuda")
    assert chunk_size(cuda) > chunk_size(torch.device("cpu")) == CPU_CHUNK
    assert block_size(cuda) > block_size(torch.device("cpu")) == CPU_BLOCK
