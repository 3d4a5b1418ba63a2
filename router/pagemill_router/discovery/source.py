"""What every source of replica addresses answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import ClassVar, Protocol


class Discovery(Protocol):
    """A source of addresses.

    `watch` yields the whole set, first at once and then whenever it differs from the last one yielded. While a source
    cannot tell, it yields nothing: a lost source takes no replica away.
    """

    name: ClassVar[str]

    def watch(self) -> AsyncIterator[frozenset[str]]:
        """Sets of host:port, for as long as it is iterated."""
        ...
