"""Plain values that cross the operator boundary: layouts, batches, and the backend's opaque objects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class KvLayout:
    """The shape of a paged KV cache, whatever the backend's order in memory."""

    layers: int
    kv_heads: int
    head_dim: int
    block_size: int
    """Tokens in a block."""
    dtype: torch.dtype


class KvCache:
    """A paged KV cache. Opaque: only the backend that made it knows the order of `tensors` in memory."""

    __slots__ = ("_per_layer", "device", "layout", "num_blocks", "tensors")

    def __init__(self, layout: KvLayout, num_blocks: int, tensors: tuple[Tensor, Tensor]) -> None:
        """`tensors` are the backend's keys and values, the layer first in both."""
        self.layout = layout
        self.num_blocks = num_blocks
        self.tensors = tensors
        self.device = tensors[0].device
        self._per_layer = list(zip(tensors[0].unbind(0), tensors[1].unbind(0), strict=True))

    @property
    def nbytes(self) -> int:
        """Bytes held by keys and values."""
        return sum(t.numel() * t.element_size() for t in self.tensors)

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """The backend's key and value tensors of one layer, as its operators take them."""
        return self._per_layer[index]


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A weight in the form the backend multiplies with. Opaque outside the backend."""

    out_features: int
    in_features: int
    dtype: torch.dtype
    deterministic: bool
    format: str
    """The backend's own name of the packing."""
    tensors: tuple[Tensor, ...]
    bias: Tensor | None
    nbytes: int
    """Bytes that the packed weight and its bias hold."""


@dataclass(frozen=True, slots=True)
class AttentionBatch:
    """Which queries belong to which sequence, and where their keys and values lie.

    Query j of sequence s (row `query_start[s] + j`) is at position `context_lens[s] - query_len[s] + j`.
    Rows past `query_start[-1]` are padding: their output is zero.
    """

    query_start: Tensor
    """int32 [sequences + 1], rising, from 0."""
    context_lens: Tensor
    """int32 [sequences]: positions computed once this step is done, its queries included."""
    block_tables: Tensor
    """int32 [sequences, max blocks]: block ids in order; entries past the context are not read."""


@dataclass(frozen=True, slots=True)
class SamplingBatch:
    """How to draw one token for each row of the logits; ragged lists are CSR (offsets, values)."""

    temperature: Tensor
    """float32 [rows]; 0 takes the largest logit."""
    top_k: Tensor
    """int32 [rows]; 0 or at least the vocabulary: off."""
    top_p: Tensor
    """float32 [rows]; 1 or more: off."""
    min_p: Tensor
    """float32 [rows]; 0: off."""
    repetition: Tensor
    """float32 [rows], above 0; 1: off. Over prompt and output."""
    frequency: Tensor
    """float32 [rows]; times the count in the output."""
    presence: Tensor
    """float32 [rows]; for ids that are in the output."""
    seeds: Tensor
    """int64 [rows]: bit pattern of the unsigned 64-bit seed."""
    positions: Tensor
    """int64 [rows]: absolute position of the token drawn."""
    choice: Tensor
    """int32 [rows]: which of several samples of one prompt."""
    bias_offsets: Tensor
    """int32 [rows + 1]."""
    bias_ids: Tensor
    """int32 [entries]; an id may occur more than once, its values add up."""
    bias_values: Tensor
    """float32 [entries]; -inf bans the id."""
    history_offsets: Tensor
    """int32 [rows + 1]."""
    history_ids: Tensor
    """int32 [entries], unique within a row."""
    history_counts: Tensor
    """int32 [entries]: occurrences in the output; 0 where the id is in the prompt only."""


class Backend(Protocol):
    """What a device's kernels supply beside the implementations of the declared operators."""

    def alloc_kv(self, layout: KvLayout, num_blocks: int, device: torch.device) -> KvCache:
        """See `ops.alloc_kv`."""
        ...

    def kv_bytes_per_block(self, layout: KvLayout) -> int:
        """See `ops.kv_bytes_per_block`."""
        ...

    def read_blocks(self, kv: KvCache, block_ids: Tensor) -> Tensor:
        """See `ops.read_blocks`."""
        ...

    def write_blocks(self, kv: KvCache, block_ids: Tensor, data: Tensor) -> None:
        """See `ops.write_blocks`."""
        ...

    def pack_weight(self, weight: Tensor, bias: Tensor | None, deterministic: bool) -> PackedWeight:
        """See `ops.pack_weight`."""
        ...

    def warm_up(
        self,
        layout: KvLayout,
        hidden_sizes: Sequence[int],
        device: torch.device,
        progress: Callable[[str, float], None],
    ) -> None:
        """See `ops.warm_up`."""
        ...
