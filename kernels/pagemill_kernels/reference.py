"""The operators in plain torch, for tests: slow, on any device, and simple enough to be seen to be right.

Float64 inputs are computed in float64, everything else in float32. Caches are taken in the canonical order of one
layer: keys and values [blocks, block_size, kv_heads, head_dim].
"""

from __future__ import annotations

import torch
from torch import Tensor

from pagemill_kernels import philox
from pagemill_kernels.types import AttentionBatch, SamplingBatch


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.to(torch.float32)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Gives x [n, in] @ weight [out, in]^T + bias, accumulated wide and rounded once."""
    y = _wide(x) @ _wide(weight).t()
    return (y if bias is None else y + _wide(bias)).to(x.dtype)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Gives x / sqrt(mean(x^2) + eps) * weight over the last dimension."""
    wide = _wide(x)
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * scale * weight.to(wide.dtype)).to(x.dtype)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """(norm of the rounded sum, rounded sum)."""
    total = x + residual
    return rms_norm(total, weight, eps), total


def silu_mul(gate_up: Tensor) -> Tensor:
    """silu(first half) * second half."""
    gate, up = _wide(gate_up).chunk(2, dim=-1)
    return (gate / (1 + torch.exp(-gate)) * up).to(gate_up.dtype)


def embedding(ids: Tensor, weight: Tensor) -> Tensor:
    """Rows of weight."""
    return weight[ids]


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    wide = _wide(x)
    first, second = wide.chunk(2, dim=-1)
    c, s = cos[:, None].to(wide.dtype), sin[:, None].to(wide.dtype)
    return torch.cat((first * c - second * s, second * c + first * s), dim=-1).to(x.dtype)


def rope_write_kv(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    slots: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 1e-6,
) -> Tensor:
    """Norms per head (optional), rotates q and k, writes k and v where the slot is not negative; returns q."""
    wide_q, wide_k = _wide(q), _wide(k)
    if q_norm is not None:
        wide_q = rms_norm(wide_q, q_norm, eps)
    if k_norm is not None:
        wide_k = rms_norm(wide_k, k_norm, eps)
    rotated = _rotate(wide_k, cos[positions], sin[positions]).to(keys.dtype)
    kept = slots >= 0
    block, offset = slots[kept] // keys.shape[1], slots[kept] % keys.shape[1]
    keys[block, offset] = rotated[kept]
    values[block, offset] = v[kept].to(values.dtype)
    return _rotate(wide_q, cos[positions], sin[positions]).to(q.dtype)


def _gather(cache: Tensor, table: Tensor, length: int) -> Tensor:
    blocks = -(-length // cache.shape[1])
    return _wide(cache[table[:blocks].long()]).flatten(0, 1)[:length]


def paged_attention(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    batch: AttentionBatch,
    *,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
) -> Tensor:
    """Gathers each sequence's keys and values, then softmax(mask(cap(q k^T * scale))) v."""
    out = torch.zeros_like(q)
    group = q.shape[1] // keys.shape[2]
    starts = batch.query_start.tolist()
    for s, length in enumerate(batch.context_lens.tolist()):
        first, last = starts[s], starts[s + 1]
        if first == last:
            continue
        k = _gather(keys, batch.block_tables[s], length).repeat_interleave(group, dim=1)
        v = _gather(values, batch.block_tables[s], length).repeat_interleave(group, dim=1)
        wide = _wide(q[first:last])
        dtype = torch.promote_types(wide.dtype, k.dtype)
        scores = torch.einsum("qhd,khd->hqk", wide.to(dtype), k.to(dtype)) * scale
        if softcap > 0:
            scores = softcap * torch.tanh(scores / softcap)
        at = torch.arange(length - (last - first), length, device=q.device)[:, None]
        seen = torch.arange(length, device=q.device)[None]
        hidden = (seen > at) | ((seen <= at - window) if window > 0 else torch.zeros_like(seen > at))
        weights = torch.softmax(scores.masked_fill(hidden, -torch.inf), dim=-1)
        out[first:last] = torch.einsum("hqk,khd->qhd", weights, v.to(dtype)).to(q.dtype)
    return out


def adjust_logits(logits: Tensor, batch: SamplingBatch) -> tuple[Tensor, Tensor]:
    """(float32 logits after bias, bans and penalties; bool mask of banned ids), both [rows, vocab]."""
    out = logits.to(torch.float32).clone()
    out = torch.where(torch.isnan(out), torch.full_like(out, -torch.inf), out)
    out = out.clamp_max(torch.finfo(torch.float32).max)
    banned = torch.zeros_like(out, dtype=torch.bool)
    for row in range(out.shape[0]):
        first, last = batch.bias_offsets[row : row + 2].tolist()
        for i, value in zip(batch.bias_ids[first:last].tolist(), batch.bias_values[first:last], strict=True):
            banned[row, i] |= bool(torch.isneginf(value))
            out[row, i] = (out[row, i] + value).clamp_max(torch.finfo(torch.float32).max)
        first, last = batch.history_offsets[row : row + 2].tolist()
        ids = batch.history_ids[first:last].long()
        counts = batch.history_counts[first:last]
        old = out[row, ids]
        old = torch.where(old > 0, old / batch.repetition[row], old * batch.repetition[row])
        old = old - batch.frequency[row] * counts.to(torch.float32)
        old = torch.where(counts > 0, old - batch.presence[row], old)
        out[row, ids] = old.clamp_max(torch.finfo(torch.float32).max)
    out = torch.where(torch.isnan(out), torch.full_like(out, -torch.inf), out)
    return out.masked_fill(banned, -torch.inf), banned


def survivors(scaled: Tensor, top_k: int, top_p: float, min_p: float) -> Tensor:
    """Bool [vocab]: what top-k, top-p and min-p leave of one row, by a full sort (largest first, ties by id)."""
    vocab = scaled.shape[0]
    order = torch.sort(scaled, descending=True, stable=True).indices
    rank = torch.empty_like(order).scatter_(0, order, torch.arange(vocab, device=order.device))
    kept = torch.isfinite(scaled)
    if 0 < top_k < vocab:
        kept &= rank < top_k
    weights = torch.where(kept, torch.exp(scaled.double()), 0.0)
    if top_p < 1:
        reached = torch.cumsum(weights[order], 0)
        # An id stays while what comes before it has not reached p of the whole.
        before = torch.cat((reached.new_zeros(1), reached[:-1]))
        kept &= (before < top_p * reached[-1])[rank] | (rank == 0)
    if min_p > 0:
        kept &= weights >= min(min_p, 1.0) * weights.max()
    return kept


def sample(logits: Tensor, batch: SamplingBatch) -> Tensor:
    """One id a row: the order and ties that `ops.sample` states."""
    adjusted, banned = adjust_logits(logits, batch)
    vocab = logits.shape[1]
    ids = torch.arange(vocab, device=logits.device)
    out = torch.zeros(logits.shape[0], dtype=torch.int64, device=logits.device)
    for row in range(logits.shape[0]):
        values = adjusted[row]
        if bool(torch.isneginf(values).all()):
            allowed = ids[~banned[row]]
            out[row] = allowed[0] if allowed.numel() else 0
            continue
        if float(batch.temperature[row]) > 0:
            scaled = (values - values.max()) / batch.temperature[row]
            kept = survivors(scaled, int(batch.top_k[row]), float(batch.top_p[row]), float(batch.min_p[row]))
            words = philox.draw_words(batch.seeds[row], batch.positions[row], batch.choice[row].long(), ids)
            values = torch.where(kept, scaled + philox.gumbel(words), -torch.inf)
        # The lowest id among equals; argmax does not promise which it takes.
        out[row] = ids[values == values.max()][0]
    return out
