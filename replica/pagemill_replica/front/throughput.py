"""Output tokens a second, smoothed."""

from __future__ import annotations

import math
from collections.abc import Callable


class Throughput:
    """An exponentially decaying rate with a time constant of `span` seconds."""

    def __init__(self, span: float, clock: Callable[[], float]) -> None:
        self._span = span
        self._clock = clock
        self._at = clock()
        self._rate = 0.0

    def add(self, tokens: int) -> None:
        """Counts tokens drawn at this moment."""
        self._rate = self.rate + tokens / self._span

    @property
    def rate(self) -> float:
        """Tokens a second as of this moment."""
        now = self._clock()
        self._rate *= math.exp(-(now - self._at) / self._span)
        self._at = now
        return self._rate
