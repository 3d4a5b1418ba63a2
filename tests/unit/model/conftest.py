"""Loads a tiny model and computes one sequence with it, step by step."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from pagemill_kernels import ops
from pagemill_replica.checkpoint import open_checkpoint
from pagemill_replica.model import Decoder, load
from support.checkpoints import Arrays, random_weights, write_folder

BLOCK = 4
BLOCKS = 8


class OneSequence:
    """A sequence with a cache of its own, blocks 0, 1, 2, ... in a row."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._kv = ops.alloc_kv(decoder.kv_layout(BLOCK), BLOCKS, "cpu")
        self._length = 0

    def step(self, ids: Sequence[int], rows: Sequence[int]) -> Tensor:
        """Logits of some rows of the next `ids`."""
        positions = torch.arange(self._length, self._length + len(ids))
        self._length += len(ids)
        batch = ops.AttentionBatch(
            query_start=torch.tensor([0, len(ids)], dtype=torch.int32),
            context_lens=torch.tensor([self._length], dtype=torch.int32),
            block_tables=torch.arange(BLOCKS, dtype=torch.int32)[None],
        )
        return self._decoder.forward(
            torch.tensor(ids), positions, positions.clone(), batch, self._kv, torch.tensor(rows, dtype=torch.int64)
        )


@pytest.fixture
def decoder(tmp_path: Path) -> Callable[..., Decoder]:
    """Loads a config and weights, random ones where none are given, through a folder of their own."""
    count = itertools.count()

    def build(config: dict[str, Any], weights: Arrays | None = None) -> Decoder:
        folder = write_folder(tmp_path / str(next(count)), config, weights or random_weights(config))
        return load(open_checkpoint(folder), torch.float32, torch.device("cpu"), False, lambda _stage, _done: None)

    return build


@pytest.fixture
def one_sequence() -> type[OneSequence]:
    return OneSequence


@pytest.fixture
def logits_of(decoder: Callable[..., Decoder]) -> Callable[..., Tensor]:
    """Every position's logits, float32 [n, vocab], in one step."""

    def compute(config: dict[str, Any], weights: Arrays | None, ids: Sequence[int]) -> Tensor:
        return OneSequence(decoder(config, weights)).step(ids, range(len(ids)))

    return compute
