"""When which request has to end."""

from __future__ import annotations

import heapq
from collections.abc import Container


class Deadlines:
    """A heap of deadlines that forgets requests that ended earlier, so that its size follows the live ones."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int]] = []

    def add(self, key: int, deadline: float) -> None:
        """Has `key` expire at `deadline`."""
        heapq.heappush(self._heap, (deadline, key))

    def expired(self, at: float) -> list[int]:
        """Takes out the keys whose deadline is `at` or earlier, soonest first. Some may have ended."""
        keys: list[int] = []
        while self._heap and self._heap[0][0] <= at:
            keys.append(heapq.heappop(self._heap)[1])
        return keys

    def prune(self, live: Container[int], live_count: int) -> None:
        """Drops the entries of ended requests once they outnumber the live ones."""
        if len(self._heap) > 2 * live_count + 64:
            self._heap = [entry for entry in self._heap if entry[1] in live]
            heapq.heapify(self._heap)

    def __len__(self) -> int:
        return len(self._heap)
