"""Long lists of ids a piece at a time: one call of C over a million of them keeps the GIL for 0.1 s."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar

__all__ = ["extend", "largest", "pieces"]

_PIECE = 1 << 15
_Item = TypeVar("_Item", int, str)
_Sent = TypeVar("_Sent", int, str, contravariant=True)


class _Extensible(Protocol[_Sent]):
    def extend(self, items: Sequence[_Sent], /) -> None: ...


def pieces(items: Sequence[_Item]) -> Iterator[Sequence[_Item]]:
    """The items in order, in slices short enough for other threads to run between them."""
    for start in range(0, len(items), _PIECE):
        yield items[start : start + _PIECE]


def extend(target: _Extensible[_Item], items: Sequence[_Item]) -> None:
    """Appends all items to a list or repeated field."""
    for piece in pieces(items):
        target.extend(piece)


def largest(ids: Sequence[int]) -> int:
    """The largest id; -1 where there is none."""
    return max((max(piece) for piece in pieces(ids)), default=-1)
