"""Compiles the numba kernels before a replica is ready, by one small call of each operator."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from pagemill_kernels.cpu import attention, elementwise, linear, sampling
from pagemill_kernels.types import KvLayout, PackedWeight

_ROWS = 2


def _rope_and_attention(layout: KvLayout, keys: Tensor, values: Tensor) -> Iterator[tuple[str, Callable[[], object]]]:
    dim, dtype = layout.head_dim, layout.dtype
    heads = torch.zeros((_ROWS, layout.kv_heads, dim), dtype=dtype)
    angles = torch.zeros((_ROWS, dim // 2))
    positions = torch.arange(_ROWS)
    slots = torch.full((_ROWS,), -1)
    yield (
        "rope_write_kv",
        lambda: elementwise.rope_write_kv(
            heads, heads, heads, angles, angles, positions, slots, keys, values, None, None, 1e-6
        ),
    )
    starts = torch.tensor([0, _ROWS], dtype=torch.int32)
    lens = torch.tensor([_ROWS], dtype=torch.int32)
    tables = torch.zeros((1, 1), dtype=torch.int32)
    yield (
        "paged_attention",
        lambda: attention.paged_attention(heads, keys, values, starts, lens, tables, 1.0, 0, 0.0, False),
    )


def _sampling_fields(rows: int) -> list[Tensor]:
    ones, zeros = torch.ones(rows), torch.zeros(rows)
    ints, longs = torch.zeros(rows, dtype=torch.int32), torch.zeros(rows, dtype=torch.int64)
    offsets, no_ids, no_values = torch.zeros(rows + 1, dtype=torch.int32), ints[:0], zeros[:0]
    controls = [ones, ints, ones, zeros, ones, zeros, zeros, longs, longs, ints]
    return [*controls, offsets, no_ids, no_values, offsets, no_ids, no_ids]


def _calls(
    layout: KvLayout, hidden_sizes: Sequence[int], keys: Tensor, values: Tensor
) -> Iterator[tuple[str, Callable[[], object]]]:
    dtype = layout.dtype
    sizes = list(hidden_sizes) or [layout.head_dim]
    rows = torch.zeros((_ROWS, sizes[0]), dtype=dtype)
    scale = torch.zeros(sizes[0], dtype=dtype)
    yield "rms_norm", lambda: elementwise.rms_norm(rows, scale, 1e-6)
    yield "add_rms_norm", lambda: elementwise.add_rms_norm(rows, rows, scale, 1e-6)
    yield "silu_mul", lambda: elementwise.silu_mul(torch.zeros((_ROWS, 32), dtype=dtype))
    yield from _rope_and_attention(layout, keys, values)
    yield (
        "sample",
        lambda: sampling.sample(torch.zeros((_ROWS, 64)), *_sampling_fields(_ROWS)),
    )
    for deterministic in (False, True):
        packed = linear.pack_weight(torch.zeros((sizes[0], sizes[0]), dtype=dtype), None, deterministic)
        yield f"linear ({packed.format})", functools.partial(_multiply, rows, packed)


def _multiply(rows: Tensor, packed: PackedWeight) -> Tensor:
    return linear.linear(
        rows, list(packed.tensors), packed.bias, packed.out_features, packed.format, packed.deterministic
    )


def warm_up(
    layout: KvLayout,
    hidden_sizes: Sequence[int],
    keys: Tensor,
    values: Tensor,
    progress: Callable[[str, float], None],
) -> None:
    """Runs each kernel once for the layout's type; keys and values are one layer of a spare cache of one block."""
    calls = list(_calls(layout, hidden_sizes, keys, values))
    with torch.inference_mode():
        for done, (name, call) in enumerate(calls):
            progress(name, done / len(calls))
            call()
    progress("ready", 1.0)
