"""What time it is in Redis, without asking."""

from __future__ import annotations

from collections.abc import Callable


class RedisClock:
    """The Redis time of the last reply plus the monotonic time since, in milliseconds.

    It runs behind by the way back of that reply, never ahead, so that what it forbids is late for certain.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._redis_ms: float | None = None
        self._at = 0.0

    def update(self, redis_ms: float) -> None:
        """Takes the time that a reply carried."""
        self._redis_ms, self._at = redis_ms, self._monotonic()

    def now_ms(self) -> float | None:
        """The estimate, or None before the first reply."""
        if self._redis_ms is None:
            return None
        return self._redis_ms + (self._monotonic() - self._at) * 1000
