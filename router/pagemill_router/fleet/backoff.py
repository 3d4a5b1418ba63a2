"""Pauses between attempts to reach a replica. Pure; the random source is passed in."""

from __future__ import annotations

import random


class Backoff:
    """Doubling pauses with jitter, from `first` to `longest` seconds."""

    def __init__(self, rng: random.Random, first: float = 0.05, longest: float = 2.0) -> None:
        self._rng = rng
        self._first = first
        self._longest = longest
        self._next = first

    def reset(self) -> None:
        """It worked: the next pause is the first again."""
        self._next = self._first

    def pause(self) -> float:
        """Seconds to wait, drawn from the upper half of the doubling pause, so that routers spread out."""
        pause = self._next * self._rng.uniform(0.5, 1.0)
        self._next = min(self._longest, self._next * 2)
        return pause
