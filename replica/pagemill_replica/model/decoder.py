"""One decoder for the whole Llama family, written over the operators of `pagemill_kernels.ops` alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pagemill_kernels import ops
from pagemill_replica.checkpoint.config import ModelConfig


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer: attention over q, k, v of one fused projection, then a gated MLP of another."""

    input_norm: Tensor
    """[hidden]."""
    qkv: ops.PackedWeight
    """hidden -> (heads + 2 * kv heads) * head dim: q, k, v side by side."""
    output: ops.PackedWeight
    post_norm: Tensor
    """[hidden]."""
    gate_up: ops.PackedWeight
    """hidden -> 2 * intermediate: gate, then up."""
    down: ops.PackedWeight
    q_norm: Tensor | None
    """[head dim], or None where the family has none; k_norm alike."""
    k_norm: Tensor | None
    window: int
    """Latest positions attended to; 0: all."""


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """All weights, packed for their device."""

    embedding: Tensor
    """[vocab, hidden]."""
    layers: tuple[LayerWeights, ...]
    final_norm: Tensor
    head: ops.PackedWeight
    """hidden -> vocab."""
    cos: Tensor
    """float32 [positions, head dim / 2]; sin alike."""
    sin: Tensor
    nbytes: int
    """Bytes that all of it holds, shared memory counted once."""


class Decoder:
    """Computes logits for the rows that sample; its only state is its weights."""

    def __init__(
        self,
        config: ModelConfig,
        weights: DecoderWeights,
        dtype: torch.dtype,
        device: torch.device,
        deterministic: bool,
    ) -> None:
        self.config = config
        self.dtype = dtype
        self.device = device
        self.deterministic = deterministic
        self._weights = weights
        self._scale = config.head_dim**-0.5

    @property
    def weight_bytes(self) -> int:
        """Bytes that weights and rotation tables hold."""
        return self._weights.nbytes

    @property
    def max_positions(self) -> int:
        """Positions that the rotation tables reach; a token beyond them cannot be computed."""
        return self._weights.cos.shape[0]

    def kv_layout(self, block_size: int) -> ops.KvLayout:
        """The KV cache this model writes to, in blocks of `block_size` tokens."""
        c = self.config
        return ops.KvLayout(c.layers, c.kv_heads, c.head_dim, block_size, self.dtype)

    @torch.inference_mode()
    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        slots: Tensor,
        batch: ops.AttentionBatch,
        kv: ops.KvCache,
        sample_rows: Tensor,
    ) -> Tensor:
        """Computes n tokens, writes their keys and values, and gives logits float32 [r, vocab] of r rows.

        token_ids, positions, slots int64 [n]; `batch` says which rows are whose; sample_rows int64 [r], rising.
        Rows that do not sample end at the last layer's attention, since nothing reads their output.
        """
        w, eps = self._weights, self.config.rms_eps
        last = len(w.layers) - 1
        residual = ops.embedding(token_ids, w.embedding)
        normed = ops.rms_norm(residual, w.layers[0].input_norm, eps)
        for index, layer in enumerate(w.layers):
            q = self._project(normed, layer, positions, slots, kv, index)
            if index == last:
                if sample_rows.shape[0] == 0:
                    return torch.empty((0, self.config.vocab_size), dtype=torch.float32, device=self.device)
                attended = self._attend(q, kv, index, batch)
                if sample_rows.shape[0] != token_ids.shape[0]:
                    attended, residual = attended[sample_rows], residual[sample_rows]
            else:
                attended = self._attend(q, kv, index, batch)
            normed, residual = ops.add_rms_norm(ops.linear(attended, layer.output), residual, layer.post_norm, eps)
            mlp = ops.linear(ops.silu_mul(ops.linear(normed, layer.gate_up)), layer.down)
            norm = w.final_norm if index == last else w.layers[index + 1].input_norm
            normed, residual = ops.add_rms_norm(mlp, residual, norm, eps)
        return ops.linear(normed, w.head).float()

    def _project(
        self, normed: Tensor, layer: LayerWeights, positions: Tensor, slots: Tensor, kv: ops.KvCache, index: int
    ) -> Tensor:
        """Rotated queries [n, heads, head dim]; keys and values go to the cache."""
        c, rows = self.config, normed.shape[0]
        qkv = ops.linear(normed, layer.qkv)
        q, k, v = torch.split_with_sizes(qkv, (c.query_size, c.kv_size, c.kv_size), dim=1)
        return ops.rope_write_kv(
            q.view(rows, c.heads, c.head_dim),
            k.view(rows, c.kv_heads, c.head_dim),
            v.view(rows, c.kv_heads, c.head_dim),
            self._weights.cos,
            self._weights.sin,
            positions,
            slots,
            kv,
            index,
            q_norm=layer.q_norm,
            k_norm=layer.k_norm,
            eps=c.rms_eps,
        )

    def _attend(self, q: Tensor, kv: ops.KvCache, index: int, batch: ops.AttentionBatch) -> Tensor:
        """What the queries gather, [n, heads * head dim]."""
        window = self._weights.layers[index].window
        attended = ops.paged_attention(
            q, kv, index, batch, scale=self._scale, window=window, deterministic=self.deterministic
        )
        return attended.view(q.shape[0], -1)
