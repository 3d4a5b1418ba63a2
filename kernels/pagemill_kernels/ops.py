"""The operators of the decoder: each is declared once here and dispatches on the device of its tensors.

Model code calls the functions of this module and never asks what device it is on. Meanings are final; how a backend
lays out `KvCache` and `PackedWeight` is its own affair. A backend registers implementations of the declared operators
with torch.library under its dispatch key, and one object with the methods of `types.Backend`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from pagemill_kernels.types import AttentionBatch, Backend, KvCache, KvLayout, PackedWeight, SamplingBatch

__all__ = [
    "AttentionBatch",
    "KvCache",
    "KvLayout",
    "PackedWeight",
    "SamplingBatch",
    "add_rms_norm",
    "alloc_kv",
    "embedding",
    "kv_bytes_per_block",
    "linear",
    "pack_weight",
    "paged_attention",
    "read_blocks",
    "rms_norm",
    "rope_write_kv",
    "sample",
    "silu_mul",
    "warm_up",
    "write_blocks",
]

_BACKENDS = {"cpu": "pagemill_kernels.cpu.backend"}
"""Device type -> module with a `BACKEND` object; imported when a device of that type is first used."""

_library = torch.library.Library("pagemill", "DEF")  # type: ignore[no-untyped-call]
for _schema in (
    "linear(Tensor x, Tensor[] weight, Tensor? bias, int out_features, str format, bool deterministic) -> Tensor",
    "rms_norm(Tensor x, Tensor weight, float eps) -> Tensor",
    "add_rms_norm(Tensor x, Tensor residual, Tensor weight, float eps) -> (Tensor, Tensor)",
    "silu_mul(Tensor gate_up) -> Tensor",
    "rope_write_kv(Tensor q, Tensor k, Tensor v, Tensor cos, Tensor sin, Tensor positions, Tensor slots,"
    " Tensor(a!) key_cache, Tensor(b!) value_cache, Tensor? q_norm, Tensor? k_norm, float eps) -> Tensor",
    "paged_attention(Tensor q, Tensor key_cache, Tensor value_cache, Tensor query_start, Tensor context_lens,"
    " Tensor block_tables, float scale, int window, float softcap, bool deterministic) -> Tensor",
    "sample(Tensor logits, Tensor temperature, Tensor top_k, Tensor top_p, Tensor min_p, Tensor repetition,"
    " Tensor frequency, Tensor presence, Tensor seeds, Tensor positions, Tensor choice, Tensor bias_offsets,"
    " Tensor bias_ids, Tensor bias_values, Tensor history_offsets, Tensor history_ids, Tensor history_counts)"
    " -> Tensor",
    "embedding(Tensor ids, Tensor weight) -> Tensor",
):
    _library.define(_schema)  # type: ignore[no-untyped-call]

_linear = torch.ops.pagemill.linear.default
_rms_norm = torch.ops.pagemill.rms_norm.default
_add_rms_norm = torch.ops.pagemill.add_rms_norm.default
_silu_mul = torch.ops.pagemill.silu_mul.default
_rope_write_kv = torch.ops.pagemill.rope_write_kv.default
_paged_attention = torch.ops.pagemill.paged_attention.default
_sample = torch.ops.pagemill.sample.default
_embedding = torch.ops.pagemill.embedding.default


def _backend(device: torch.device) -> Backend:
    """The kernels of a device type; NotImplementedError names the types there are."""
    name = _BACKENDS.get(device.type)
    if name is None:
        raise NotImplementedError(f"no kernels for device type {device.type!r}; there are: {', '.join(_BACKENDS)}")
    backend: Backend = importlib.import_module(name).BACKEND
    return backend


def kv_bytes_per_block(layout: KvLayout, device: torch.device | str = "cpu") -> int:
    """Bytes that one block takes on a device over all layers, keys and values together, padding included."""
    return _backend(torch.device(device)).kv_bytes_per_block(layout)


def alloc_kv(layout: KvLayout, num_blocks: int, device: torch.device | str) -> KvCache:
    """A KV cache of `num_blocks` zeroed blocks; the pages of memory are touched as blocks are first written."""
    where = torch.device(device)
    return _backend(where).alloc_kv(layout, num_blocks, where)


def read_blocks(kv: KvCache, block_ids: Tensor) -> Tensor:
    """A copy of n blocks (ids int64 [n]) in the canonical order [layers, 2, n, block_size, kv_heads, head_dim].

    The second axis is keys (as rotated and written), then values. ValueError for blocks that the cache lacks.
    """
    return _backend(kv.device).read_blocks(kv, block_ids)


def write_blocks(kv: KvCache, block_ids: Tensor, data: Tensor) -> None:
    """Overwrites n blocks with data in the order and shape that `read_blocks` gives, any floating type.

    ValueError for another shape, and for blocks that the cache lacks.
    """
    _backend(kv.device).write_blocks(kv, block_ids, data)


def pack_weight(weight: Tensor, bias: Tensor | None = None, *, deterministic: bool = False) -> PackedWeight:
    """Prepares a weight [out, in] (and bias [out]) for `linear`; the result may share memory with them.

    deterministic: `linear` gives row i the same bits however many rows there are, at some cost in speed.
    """
    if weight.dim() != 2:
        raise ValueError(f"a weight has two dimensions, not {weight.dim()}")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"bias of shape {tuple(bias.shape)} does not fit {weight.shape[0]} outputs")
    return _backend(weight.device).pack_weight(weight, bias, deterministic)


def linear(x: Tensor, w: PackedWeight) -> Tensor:
    """Multiplies x [n, in] by the weight's transpose, plus bias: [n, out] in the type of x, which is the weight's."""
    if x.dim() != 2 or x.shape[1] != w.in_features or x.dtype != w.dtype:
        raise ValueError(f"{x.dtype} {tuple(x.shape)} does not fit a {w.dtype} weight of {w.in_features} inputs")
    result: Tensor = _linear(x, w.tensors, w.bias, w.out_features, w.format, w.deterministic)
    return result


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Gives x [n, hidden] / sqrt(mean(x^2) + eps) * weight, computed in float32 and rounded once."""
    result: Tensor = _rms_norm(x, weight, eps)
    return result


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """(norm of the sum, sum = x + residual rounded to their type); the norm sees the rounded sum."""
    result: tuple[Tensor, Tensor] = _add_rms_norm(x, residual, weight, eps)
    return result


def silu_mul(gate_up: Tensor) -> Tensor:
    """Gives gate / (1 + exp(-gate)) * up for gate_up [n, 2 * inner], the gate's half first: [n, inner]."""
    result: Tensor = _silu_mul(gate_up)
    return result


def rope_write_kv(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    slots: Tensor,
    kv: KvCache,
    layer: int,
    *,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 1e-6,
) -> Tensor:
    """Rotates q and k by position (NeoX: the halves of a head pair up), writes k and v into the cache.

    q [n, heads, dim]; k, v [n, kv heads, dim]; the last two dimensions contiguous, rows may be strided.
    cos, sin float32 [max position, dim / 2]; positions int64 [n]; slots int64 [n] = block * block size + offset,
    a negative slot is not written. q_norm, k_norm [dim]: RMS norm of each head before the rotation (Qwen 3).
    Returns the rotated q, contiguous.
    """
    keys, values = kv.layer(layer)
    result: Tensor = _rope_write_kv(q, k, v, cos, sin, positions, slots, keys, values, q_norm, k_norm, eps)
    return result


def paged_attention(
    q: Tensor,
    kv: KvCache,
    layer: int,
    batch: AttentionBatch,
    *,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    deterministic: bool = False,
) -> Tensor:
    """Causal attention of q [n, heads, dim] over paged keys and values: [n, heads, dim].

    Prefill, chunked prefill, decode and mixtures are one call. A query at position p sees positions up to p, and with
    `window` > 0 only those above p - window. softcap > 0: scores become cap * tanh(score / cap), after `scale`.
    deterministic: a query's bits do not depend on how the sequence was cut into steps nor on its neighbours.
    """
    keys, values = kv.layer(layer)
    result: Tensor = _paged_attention(
        q,
        keys,
        values,
        batch.query_start,
        batch.context_lens,
        batch.block_tables,
        scale,
        window,
        softcap,
        deterministic,
    )
    return result


def sample(logits: Tensor, batch: SamplingBatch) -> Tensor:
    """Draws one id per row of logits [rows, vocab]: int64 [rows]. The logits are left as they are.

    Order: logit bias (bans are -inf) -> repetition -> frequency, presence -> greedy, or (logit - largest) / temperature
    -> top-k (exactly k, ties to the lower id) -> top-p (the smallest set that reaches p, ties to the lower id) ->
    min-p -> largest of logit + Gumbel noise (`philox`). NaN counts as -inf, +inf as the largest float. Where nothing
    is left, the lowest id that is not banned, or 0.
    """
    result: Tensor = _sample(
        logits,
        batch.temperature,
        batch.top_k,
        batch.top_p,
        batch.min_p,
        batch.repetition,
        batch.frequency,
        batch.presence,
        batch.seeds,
        batch.positions,
        batch.choice,
        batch.bias_offsets,
        batch.bias_ids,
        batch.bias_values,
        batch.history_offsets,
        batch.history_ids,
        batch.history_counts,
    )
    return result


def embedding(ids: Tensor, weight: Tensor) -> Tensor:
    """Rows of weight [vocab, hidden] for int64 ids [n]: [n, hidden]."""
    result: Tensor = _embedding(ids, weight)
    return result


def warm_up(
    layout: KvLayout,
    hidden_sizes: Sequence[int],
    device: torch.device | str = "cpu",
    progress: Callable[[str, float], None] | None = None,
) -> None:
    """Compiles every kernel that a model of this layout and type needs; `progress(kernel, fraction done)`."""
    where = torch.device(device)
    _backend(where).warm_up(layout, hidden_sizes, where, progress or (lambda _name, _fraction: None))


_backend(torch.device("cpu"))
