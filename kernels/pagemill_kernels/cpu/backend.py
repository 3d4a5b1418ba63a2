"""The CPU backend's objects: the paged cache, packed weights, and the registration of its operators.

Memory order of one layer's cache: keys [block, kv head, dim, slot], so that the score loop vectorises over slots;
values [block, kv head, slot, dim].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from pagemill_kernels import reference
from pagemill_kernels.registry import implement
from pagemill_kernels.types import AttentionBatch, Backend, KvCache, KvLayout, PackedWeight, SamplingBatch


class CpuBackend:
    """See `types.Backend`."""

    def alloc_kv(self, layout: KvLayout, num_blocks: int, device: torch.device) -> KvCache:
        """Zeroed by calloc: the pages are touched as blocks are first written."""
        head = (layout.layers, num_blocks, layout.kv_heads)
        keys = torch.zeros(*head, layout.head_dim, layout.block_size, dtype=layout.dtype, device=device)
        values = torch.zeros(*head, layout.block_size, layout.head_dim, dtype=layout.dtype, device=device)
        return KvCache(layout, num_blocks, (keys, values))

    def read_blocks(self, kv: KvCache, block_ids: Tensor) -> Tensor:
        """Copies blocks into the canonical order."""
        keys, values = (t[:, block_ids] for t in kv.tensors)
        return torch.stack((keys.permute(0, 1, 4, 2, 3), values.permute(0, 1, 3, 2, 4)), dim=1)

    def write_blocks(self, kv: KvCache, block_ids: Tensor, data: Tensor) -> None:
        """Copies blocks from the canonical order."""
        kv.tensors[0][:, block_ids] = data[:, 0].permute(0, 1, 3, 4, 2).to(kv.layout.dtype)
        kv.tensors[1][:, block_ids] = data[:, 1].permute(0, 1, 3, 2, 4).to(kv.layout.dtype)

    def pack_weight(self, weight: Tensor, bias: Tensor | None, deterministic: bool) -> PackedWeight:
        """Keeps the weight as it is."""
        return PackedWeight(
            weight.shape[0], weight.shape[1], weight.dtype, deterministic, "plain", (weight,), bias, weight.nbytes
        )

    def warm_up(
        self,
        layout: KvLayout,
        hidden_sizes: Sequence[int],
        device: torch.device,
        progress: Callable[[str, float], None],
    ) -> None:
        """Nothing to compile."""
        progress("ready", 1.0)


BACKEND: Backend = CpuBackend()


def _linear(
    x: Tensor, weight: list[Tensor], bias: Tensor | None, out_features: int, fmt: str, deterministic: bool
) -> Tensor:
    return F.linear(x, weight[0], bias)


def _rope(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    slots: Tensor,
    keys: Tensor,
    values: Tensor,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    eps: float,
) -> Tensor:
    keys, values = keys.permute(0, 3, 1, 2), values.permute(0, 2, 1, 3)
    return reference.rope_write_kv(
        q, k, v, cos, sin, positions, slots, keys, values, q_norm=q_norm, k_norm=k_norm, eps=eps
    )


def _attention(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    query_start: Tensor,
    context_lens: Tensor,
    block_tables: Tensor,
    scale: float,
    window: int,
    softcap: float,
    deterministic: bool,
) -> Tensor:
    keys, values = keys.permute(0, 3, 1, 2), values.permute(0, 2, 1, 3)
    batch = AttentionBatch(query_start, context_lens, block_tables)
    return reference.paged_attention(q, keys, values, batch, scale=scale, window=window, softcap=softcap)


implement("linear", _linear, "CPU")
implement("rms_norm", reference.rms_norm, "CPU")
implement("add_rms_norm", reference.add_rms_norm, "CPU")
implement("silu_mul", reference.silu_mul, "CPU")
implement("rope_write_kv", _rope, "CPU")
implement("paged_attention", _attention, "CPU")
implement("sample", lambda logits, *fields: reference.sample(logits, SamplingBatch(*fields)), "CPU")
implement("embedding", lambda ids, weight: F.embedding(ids, weight), "CPU")
