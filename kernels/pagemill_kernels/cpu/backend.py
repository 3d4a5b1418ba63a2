"""The CPU backend's objects: the paged cache, packed weights, and the registration of its operators.

Memory order of one layer's cache: keys [block, kv head, dim, slot], so that the score loop vectorises over slots;
values [block, kv head, slot, dim].
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from pagemill_kernels.cpu import attention, elementwise, linear, sampling, warmup
from pagemill_kernels.cpu.storage import padded, untouched_zeros, use_openmp
from pagemill_kernels.registry import implement
from pagemill_kernels.types import Backend, KvCache, KvLayout, PackedWeight


class CpuBackend:
    """See `types.Backend`."""

    def alloc_kv(self, layout: KvLayout, num_blocks: int, device: torch.device) -> KvCache:
        """Slots of keys and dimensions of values are padded to whole vectors."""
        head = (layout.layers, num_blocks, layout.kv_heads)
        keys = untouched_zeros((*head, layout.head_dim, padded(layout.block_size)), layout.dtype)
        values = untouched_zeros((*head, layout.block_size, padded(layout.head_dim)), layout.dtype)
        return KvCache(layout, num_blocks, (keys, values))

    def kv_bytes_per_block(self, layout: KvLayout) -> int:
        """Padding included."""
        keys = layout.head_dim * padded(layout.block_size)
        values = layout.block_size * padded(layout.head_dim)
        return layout.layers * layout.kv_heads * (keys + values) * layout.dtype.itemsize

    def read_blocks(self, kv: KvCache, block_ids: Tensor) -> Tensor:
        """Copies blocks into the canonical order."""
        _check_blocks(kv, block_ids)
        keys, values = (t[:, block_ids] for t in kv.tensors)
        keys, values = keys[..., : kv.layout.block_size], values[..., : kv.layout.head_dim]
        return torch.stack((keys.permute(0, 1, 4, 2, 3), values.permute(0, 1, 3, 2, 4)), dim=1)

    def write_blocks(self, kv: KvCache, block_ids: Tensor, data: Tensor) -> None:
        """Copies blocks from the canonical order."""
        _check_blocks(kv, block_ids)
        layout, keys, values = kv.layout, *kv.tensors
        wanted = (layout.layers, 2, len(block_ids), layout.block_size, layout.kv_heads, layout.head_dim)
        if data.shape != wanted:
            raise ValueError(f"data of shape {tuple(data.shape)} for blocks of {wanted}")
        keys[:, block_ids, :, :, : kv.layout.block_size] = data[:, 0].permute(0, 1, 3, 4, 2).to(kv.layout.dtype)
        values[:, block_ids, :, :, : kv.layout.head_dim] = data[:, 1].permute(0, 1, 3, 2, 4).to(kv.layout.dtype)

    def pack_weight(self, weight: Tensor, bias: Tensor | None, deterministic: bool) -> PackedWeight:
        """See `linear`."""
        return linear.pack_weight(weight, bias, deterministic)

    def warm_up(
        self,
        layout: KvLayout,
        hidden_sizes: Sequence[int],
        device: torch.device,
        progress: Callable[[str, float], None],
    ) -> None:
        """Compiles every numba kernel for the layout's type, or loads it from numba's cache on disk."""
        one_layer = dataclasses.replace(layout, layers=1)
        warmup.warm_up(layout, hidden_sizes, *self.alloc_kv(one_layer, 1, device).layer(0), progress)


def _check_blocks(kv: KvCache, block_ids: Tensor) -> None:
    """Indexing alone would take negative ids from the end, and a mask for ids."""
    if block_ids.dim() != 1 or block_ids.dtype != torch.int64:
        raise ValueError(f"block ids are int64 [n], not {block_ids.dtype} {tuple(block_ids.shape)}")
    if len(block_ids) and not (int(block_ids.min()) >= 0 and int(block_ids.max()) < kv.num_blocks):
        raise ValueError(f"a block id is outside of [0, {kv.num_blocks})")


use_openmp()
BACKEND: Backend = CpuBackend()


# A weight that oneDNN packed has a dispatch key of its own.
implement("linear", linear.linear, "CPU", "MkldnnCPU")
implement("rms_norm", elementwise.rms_norm, "CPU")
implement("add_rms_norm", elementwise.add_rms_norm, "CPU")
implement("silu_mul", elementwise.silu_mul, "CPU")
implement("rope_write_kv", elementwise.rope_write_kv, "CPU")
implement("paged_attention", attention.paged_attention, "CPU")
implement("sample", sampling.sample, "CPU")
implement("embedding", lambda ids, weight: F.embedding(ids, weight), "CPU")
