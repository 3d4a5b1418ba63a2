"""How many KV blocks there are: a pure decision over what memory is left once the weights are loaded."""

from __future__ import annotations

from dataclasses import dataclass

from pagemill_replica.checkpoint import ModelConfig
from pagemill_replica.runner.errors import SettingError

GIB = 1 << 30
DEFAULT_SHARE = 4
"""Without `--kv-memory` the cache takes one part in this many of what is available,"""
DEFAULT_LIMIT = 4 * GIB
"""and no more than this: a laptop runs other things as well, and a CPU is out of compute before it is out of cache."""
DEFAULT_LEAST_TOKENS = 1024
"""A cache that cannot hold a request of this length (or of the whole context) is not chosen unasked."""


@dataclass(frozen=True, slots=True)
class KvPlan:
    """The size of the KV cache."""

    num_blocks: int
    block_size: int
    kv_bytes: int
    max_context: int

    @property
    def tokens(self) -> int:
        """Positions the cache holds."""
        return self.num_blocks * self.block_size

    @property
    def max_request_tokens(self) -> int:
        """The largest prompt and output together: the smaller of context and pool."""
        return min(self.max_context, self.tokens)

    @property
    def full_length_requests(self) -> float:
        """How many requests of the full context the cache holds at once."""
        return self.tokens / self.max_context


def step_bytes(model: ModelConfig, token_budget: int, max_running: int, item_bytes: int) -> int:
    """Bytes that a full step takes beside weights and cache: the widest layer's activations, then logits."""
    hidden, attention = 4 * model.hidden_size, 2 * (model.query_size + model.kv_size)
    activations = token_budget * item_bytes * (hidden + attention + 3 * model.intermediate_size)
    return activations + 2 * 4 * min(max_running, token_budget) * model.vocab_size


def plan_kv(
    available: int,
    requested: int | None,
    bytes_per_block: int,
    max_context: int,
    block_size: int,
    max_running: int,
) -> KvPlan:
    """Blocks for `requested` bytes, or, where None, for a modest share of the `available` bytes.

    The default is min(available / 4, 4 GiB), and never more than `max_running` requests of `max_context` tokens use.
    Raises SettingError naming `--kv-memory` where the machine lacks the bytes or the bytes hold too little.
    """
    if requested is not None:
        return _requested(available, requested, bytes_per_block, max_context, block_size)
    most = -(-max_context // block_size) * max_running
    blocks = min(available // DEFAULT_SHARE, DEFAULT_LIMIT) // bytes_per_block
    least = -(-min(max_context, DEFAULT_LEAST_TOKENS) // block_size)
    if blocks < least:
        raise SettingError(
            "--kv-memory",
            f"{readable(available)} of memory are left and the KV cache takes a quarter by default, too little for "
            f"{least} blocks of {readable(bytes_per_block)}; free memory, choose a smaller model, or set --kv-memory",
        )
    blocks = min(blocks, most)
    return KvPlan(blocks, block_size, blocks * bytes_per_block, max_context)


def _requested(available: int, requested: int, bytes_per_block: int, max_context: int, block_size: int) -> KvPlan:
    if requested > available:
        raise SettingError(
            "--kv-memory", f"{readable(requested)} asked for, {readable(available)} of memory left; ask for less"
        )
    blocks = requested // bytes_per_block
    if blocks < 1:
        raise SettingError(
            "--kv-memory", f"{readable(requested)} hold no block of {block_size} tokens ({readable(bytes_per_block)})"
        )
    return KvPlan(blocks, block_size, blocks * bytes_per_block, max_context)


def readable(amount: int) -> str:
    """Bytes for people: `3.8 GiB`."""
    value = float(amount)
    for unit in ("B", "KiB", "MiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"
