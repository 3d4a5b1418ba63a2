"""Bounded sets of block hashes: what a replica caches, and what our requests hold there."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence

DEFAULT_LIMIT = 262_144


class KnownBlocks:
    """Hashes of cached blocks, at most `limit`; the ones stored longest ago are forgotten first.

    Forgetting costs a cache hit at worst: placement is a guess, the replica's cache is the truth.
    """

    def __init__(self, limit: int = DEFAULT_LIMIT) -> None:
        self._limit = limit
        self._hashes: OrderedDict[bytes, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._hashes)

    def __contains__(self, block: bytes) -> bool:
        return block in self._hashes

    def apply(self, *, snapshot: bool, stored: Iterable[bytes], removed: Iterable[bytes]) -> None:
        """Takes one message of events: a snapshot replaces all; else removals come before additions."""
        if snapshot:
            self._hashes.clear()
        for block in removed:
            self._hashes.pop(block, None)
        for block in stored:
            self._hashes[block] = None
            self._hashes.move_to_end(block)
        while len(self._hashes) > self._limit:
            self._hashes.popitem(last=False)

    def clear(self) -> None:
        """Forgets all."""
        self._hashes.clear()

    def leading(self, hashes: Sequence[bytes]) -> int:
        """How many of a chain's first hashes are known without a gap."""
        return _leading(self._hashes, hashes)


class HeldBlocks:
    """Hashes of prompt blocks that live requests hold, counted, since requests share blocks."""

    def __init__(self) -> None:
        self._counts: Counter[bytes] = Counter()

    def __len__(self) -> int:
        return len(self._counts)

    def hold(self, hashes: Iterable[bytes]) -> None:
        """A request that computed these blocks lives."""
        self._counts.update(hashes)

    def drop(self, hashes: Iterable[bytes]) -> None:
        """That request has ended."""
        for block in hashes:
            left = self._counts[block] - 1
            if left > 0:
                self._counts[block] = left
            else:
                del self._counts[block]

    def leading(self, hashes: Sequence[bytes]) -> int:
        """How many of a chain's first hashes are held without a gap."""
        return _leading(self._counts, hashes)


def _leading(known: OrderedDict[bytes, None] | Counter[bytes], hashes: Sequence[bytes]) -> int:
    count = 0
    for block in hashes:
        if block not in known:
            break
        count += 1
    return count
