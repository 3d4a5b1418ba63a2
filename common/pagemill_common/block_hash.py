"""The names of cached blocks: chained SHA-256 hashes that routers and replicas compute alike.

Encoding, byte for byte, where `u32(x)` is x in 4 bytes, little endian, and `field(b)` is `u32(len(b)) + b`:

    root  = SHA-256("pagemill-kv-1" + field(model_id) + field(adapter_id) + field(salt) + u32(block_size))
    child = SHA-256(parent + u32(ids[0]) + u32(ids[1]) + ...)

`model_id` and `adapter_id` are UTF-8, `salt` is raw bytes, hashes are 32 bytes. A child hashes exactly `block_size`
ids: only full blocks have a name. The length before each field keeps ("ab", "c") and ("a", "bc") apart. The model
id stands for config, tokenizer, template and weights; the salt keeps tenants apart; the block size belongs to the pool.

Golden vectors: tests/vectors/block_hash.jsonl.
"""

from __future__ import annotations

import hashlib
import struct
import sys
from array import array
from collections.abc import Sequence

__all__ = ["DOMAIN", "HASH_BYTES", "BlockHasher"]

DOMAIN = b"pagemill-kv-1"
"""Begins every root: names the encoding and its version. Of fixed length, so it has no prefix."""
HASH_BYTES = 32
"""Length of every hash."""

_U32_MAX = 0xFFFF_FFFF


def _field(value: bytes) -> bytes:
    return struct.pack("<I", len(value)) + value


def _pack_ids(ids: Sequence[int]) -> bytes:
    """Ids as consecutive little-endian u32. Raises ValueError for one outside [0, 2^32)."""
    try:
        packed = array("I", ids)
    except (OverflowError, TypeError) as error:
        raise ValueError(f"token ids must be integers in [0, {_U32_MAX}]: {error}") from None
    if packed.itemsize != 4:
        return struct.pack(f"<{len(ids)}I", *ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


class BlockHasher:
    """Hashes of full blocks for one model, adapter and block size. Immutable, so threads may share it."""

    __slots__ = ("adapter_id", "block_size", "model_id")

    def __init__(self, model_id: str, adapter_id: str = "", block_size: int = 16) -> None:
        if not 1 <= block_size <= _U32_MAX:
            raise ValueError(f"block_size must be in [1, {_U32_MAX}], not {block_size}")
        self.model_id = model_id
        self.adapter_id = adapter_id
        self.block_size = block_size

    def root(self, salt: bytes = b"") -> bytes:
        """The parent of a prompt's first block; 32 bytes."""
        fields = (self.model_id.encode(), self.adapter_id.encode(), salt)
        return hashlib.sha256(DOMAIN + b"".join(map(_field, fields)) + struct.pack("<I", self.block_size)).digest()

    def child(self, parent: bytes, token_ids: Sequence[int]) -> bytes:
        """The hash of a full block after `parent`; 32 bytes. Raises ValueError where it is not exactly one block."""
        if len(token_ids) != self.block_size:
            raise ValueError(f"a block has {self.block_size} tokens, not {len(token_ids)}")
        if len(parent) != HASH_BYTES:
            raise ValueError(f"a hash has {HASH_BYTES} bytes, not {len(parent)}")
        return hashlib.sha256(parent + _pack_ids(token_ids)).digest()

    def chain(self, token_ids: Sequence[int], salt: bytes = b"") -> list[bytes]:
        """Hashes of all full blocks of a prompt, first block first; an unfinished last block has none."""
        size = self.block_size
        packed = _pack_ids(token_ids)
        parent = self.root(salt)
        hashes: list[bytes] = []
        for start in range(0, len(token_ids) // size * size, size):
            parent = hashlib.sha256(parent + packed[start * 4 : (start + size) * 4]).digest()
            hashes.append(parent)
        return hashes
