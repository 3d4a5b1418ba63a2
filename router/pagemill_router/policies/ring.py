"""A consistent-hash ring: where a key's replica stays when others come and go."""

from __future__ import annotations

import bisect
import hashlib
from collections.abc import Iterator
from functools import lru_cache

VIRTUAL_NODES = 64
"""Points of each member on the ring; the share of the fullest member is within about 1.3 of the mean."""


class Ring:
    """Members on a circle of 64-bit positions."""

    def __init__(self, members: tuple[str, ...], virtual_nodes: int = VIRTUAL_NODES) -> None:
        points = [(_position(f"{member}#{i}".encode()), member) for member in members for i in range(virtual_nodes)]
        points.sort()
        self._positions = [position for position, _ in points]
        self._owners = [owner for _, owner in points]
        self._size = len(members)

    def walk(self, key: bytes) -> Iterator[str]:
        """The members in the order in which the circle meets them from the key on, each once."""
        start = bisect.bisect_right(self._positions, _position(key))
        seen: set[str] = set()
        for step in range(len(self._owners)):
            owner = self._owners[(start + step) % len(self._owners)]
            if owner not in seen:
                seen.add(owner)
                yield owner
                if len(seen) == self._size:
                    return


def _position(key: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big")


@lru_cache(maxsize=64)
def ring_of(members: tuple[str, ...]) -> Ring:
    """The ring of these members; `members` sorted, so that equal sets share one."""
    return Ring(members)
