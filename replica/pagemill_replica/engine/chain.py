"""Links of a prefix chain: what a full block of the KV cache holds, and everything before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Hasher(Protocol):
    """Names links. The process edge passes the encoding of the wire contract; tests may pass a colliding one."""

    def root(self, salt: bytes) -> bytes:
        """Name of the empty prefix under `salt`."""
        ...

    def child(self, parent: bytes, token_ids: Sequence[int]) -> bytes:
        """Name of the prefix that goes on from `parent` with one block of tokens."""
        ...


class Link:
    """One full block of tokens and the link before it.

    Two links mean the same prefix only if `same_prefix` says so: the hash is a name to look up, never a proof.
    """

    __slots__ = ("content", "hash", "parent")

    def __init__(self, hash_: bytes, parent: Link | None, content: tuple[int, ...] | bytes) -> None:
        self.hash = hash_
        self.parent = parent
        """The link before; None at the root."""
        self.content = content
        """The block's token ids; the salt at the root."""


def same_prefix(a: Link, b: Link) -> bool:
    """Whether both stand for the same tokens from the same salt on.

    Walks back until the chains meet in one object, which for live chains is the parent: callers replace their link by
    the one they found, so that the next comparison ends after one block.
    """
    left: Link | None = a
    right: Link | None = b
    while left is not right:
        if left is None or right is None or left.content != right.content:
            return False
        left, right = left.parent, right.parent
    return True
