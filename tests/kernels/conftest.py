"""Builders of cases for the operators: paged caches with poison in what no query may see, sampling batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pytest
import torch
from hypothesis import settings
from torch import Tensor

from pagemill_kernels.ops import AttentionBatch, KvCache, KvLayout, SamplingBatch, alloc_kv, read_blocks, write_blocks

settings.register_profile("kernels", deadline=None, max_examples=40, derandomize=True)
settings.load_profile("kernels")

NAN = float("nan")
DEAD = -(2**30)
"""Fills table entries past the context: to follow one is a crash."""


@dataclass
class AttentionCase:
    """Queries over a cache whose unused slots and blocks are NaN."""

    q: Tensor
    kv: KvCache
    batch: AttentionBatch

    def canonical(self) -> tuple[Tensor, Tensor]:
        """Keys and values of layer 0 in float64, in the oracle's order."""
        data = read_blocks(self.kv, torch.arange(self.kv.num_blocks)).double()
        return data[0, 0], data[0, 1]


def make_attention_case(
    *,
    heads: int,
    kv_heads: int,
    head_dim: int,
    block_size: int,
    context_lens: Sequence[int],
    query_lens: Sequence[int],
    dtype: torch.dtype = torch.float32,
    padding_rows: int = 0,
    seed: int = 0,
) -> AttentionCase:
    generator = torch.Generator().manual_seed(seed)
    needed = [-(-length // block_size) for length in context_lens]
    layout = KvLayout(1, kv_heads, head_dim, block_size, dtype)
    kv = alloc_kv(layout, sum(needed) + 3, "cpu")
    for tensor in kv.tensors:
        tensor.fill_(NAN)
    order = torch.randperm(kv.num_blocks, generator=generator)
    tables = torch.full((len(context_lens), max(needed) + 1), DEAD, dtype=torch.int32)
    used = 0
    for row, (length, blocks) in enumerate(zip(context_lens, needed, strict=True)):
        ids = order[used : used + blocks]
        used += blocks
        tables[row, :blocks] = ids
        data = torch.randn((1, 2, blocks, block_size, kv_heads, head_dim), generator=generator)
        data.view(1, 2, blocks * block_size, kv_heads, head_dim)[:, :, length:] = NAN
        write_blocks(kv, ids, data.to(dtype))
    starts = torch.tensor([0, *torch.tensor(query_lens).cumsum(0).tolist()], dtype=torch.int32)
    q = torch.randn((int(starts[-1]) + padding_rows, heads, head_dim), generator=generator).to(dtype)
    return AttentionCase(q, kv, AttentionBatch(starts, torch.tensor(context_lens, dtype=torch.int32), tables))


def make_sampling_batch(rows: int, **fields: Tensor | Sequence[float]) -> SamplingBatch:
    """A batch that draws at temperature 1 with nothing else on; `fields` replace some."""
    ints, longs = torch.int32, torch.int64
    types = {
        "top_k": ints,
        "choice": ints,
        "seeds": longs,
        "positions": longs,
        "bias_offsets": ints,
        "bias_ids": ints,
        "history_offsets": ints,
        "history_ids": ints,
        "history_counts": ints,
    }
    values: dict[str, object] = {
        "temperature": [1.0] * rows,
        "top_k": [0] * rows,
        "top_p": [1.0] * rows,
        "min_p": [0.0] * rows,
        "repetition": [1.0] * rows,
        "frequency": [0.0] * rows,
        "presence": [0.0] * rows,
        "seeds": list(range(rows)),
        "positions": [7] * rows,
        "choice": [0] * rows,
        "bias_offsets": [0] * (rows + 1),
        "bias_ids": [],
        "bias_values": [],
        "history_offsets": [0] * (rows + 1),
        "history_ids": [],
        "history_counts": [],
    }
    values.update(fields)
    return SamplingBatch(**{k: torch.as_tensor(v, dtype=types.get(k, torch.float32)) for k, v in values.items()})


@pytest.fixture(scope="session")
def attention_case() -> Callable[..., AttentionCase]:
    return make_attention_case


@pytest.fixture(scope="session")
def sampling_batch() -> Callable[..., SamplingBatch]:
    return make_sampling_batch


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)
