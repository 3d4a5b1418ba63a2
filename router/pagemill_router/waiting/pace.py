"""How fast a queue moves: the basis of an honest estimate for those who are turned away. Pure; time is passed in."""

from __future__ import annotations

from collections import deque

WINDOW = 32
"""Departures over which the pace is taken."""
SURE = 8
"""Departures in a busy period before an estimate may turn a request away."""
UNKNOWN_WAIT = 1.0
"""Seconds to name while nothing has been seen to move."""
LONGEST_WAIT = 60.0
SHORTEST_WAIT = 0.1


class Pace:
    """Departures of one busy period: from when someone waits until nobody does."""

    def __init__(self) -> None:
        self._marks: deque[float] = deque(maxlen=WINDOW + 1)

    def begin(self, at: float) -> None:
        """Somebody waits, where nobody did. Earlier periods say nothing about this one."""
        self._marks.clear()
        self._marks.append(at)

    def depart(self, at: float) -> None:
        """One left the queue because it got room."""
        self._marks.append(at)

    def wait(self, position: int, at: float) -> float:
        """Seconds until the one at `position` (1 is next) gets room, as far as can be told."""
        if not self._marks:
            return UNKNOWN_WAIT
        departures = len(self._marks) - 1
        elapsed = at - self._marks[0]
        each = elapsed / departures if departures else max(UNKNOWN_WAIT / max(position, 1), elapsed)
        return min(LONGEST_WAIT, max(SHORTEST_WAIT, position * each))

    def hopeless(self, position: int, at: float, time_left: float | None) -> bool:
        """It is sure enough that the one at `position` would wait in vain."""
        if time_left is None or len(self._marks) <= SURE:
            return False
        return self.wait(position, at) > time_left
