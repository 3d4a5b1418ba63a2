"""When to stop asking Redis, and when to ask again: pure, its clock and its dice passed in."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum


class BreakerState(StrEnum):
    """Also a metric label."""

    CLOSED = "closed"
    """Ask."""
    OPEN = "open"
    """Do not ask; work in local mode."""
    HALF_OPEN = "half_open"
    """One probe at a time may ask."""


class Breaker:
    """Opens after `failures` errors in a row, or at once by `trip`; probes after a pause; closes after `successes`
    good probes.

    The pause doubles with each failed probe from `pause` up to `max_pause` seconds, spread by `dice()` in [0, 1) over
    [0.5, 1) of it, so that routers do not probe together. `allow` is asked before each call and exactly one of
    `succeeded` and `failed` told after it. While it is not closed only the outcome of a probe counts: calls that left
    before it opened end later. A probe whose outcome is never told is lost after the pause.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        dice: Callable[[], float],
        *,
        failures: int = 3,
        successes: int = 1,
        pause: float = 0.25,
        max_pause: float = 2.0,
    ) -> None:
        if failures < 1 or successes < 1 or not 0 < pause <= max_pause:
            raise ValueError("failures and successes must be at least 1, 0 < pause <= max_pause")
        self._clock = clock
        self._dice = dice
        self._failures_to_open = failures
        self._successes_to_close = successes
        self._first_pause = pause
        self._max_pause = max_pause
        self._pause = pause
        self._failed = 0
        self._succeeded = 0
        self._open = False
        self._probing = False
        self._ask_at = 0.0
        self.reason = ""
        """Why it is not closed."""

    @property
    def state(self) -> BreakerState:
        """Open turns half-open by itself when its pause has passed."""
        if not self._open:
            return BreakerState.CLOSED
        return BreakerState.OPEN if self._clock() < self._ask_at else BreakerState.HALF_OPEN

    def allow(self) -> bool:
        """Whether to ask. In the half-open state the first caller gets a yes and becomes the probe."""
        state = self.state
        if state is BreakerState.HALF_OPEN:
            self._probing = True
            self._ask_at = self._clock() + self._spread()
        return state is not BreakerState.OPEN

    def succeeded(self) -> None:
        """A call was answered."""
        if not self._open:
            self._failed = 0
            return
        if not self._probing:
            return
        self._probing = False
        self._succeeded += 1
        if self._succeeded >= self._successes_to_close:
            self._open = False
            self._failed = self._succeeded = 0
            self.reason = ""
        else:
            self._ask_at = self._clock()

    def failed(self, reason: str) -> None:
        """A call was not answered."""
        if not self._open:
            self._failed += 1
            if self._failed >= self._failures_to_open:
                self.trip(reason)
        elif self._probing:
            self._pause = min(2 * self._pause, self._max_pause)
            self._pause_again(reason)

    def trip(self, reason: str) -> None:
        """Opens at once, for example where Redis answers but knows too few replicas."""
        if not self._open:
            self._open = True
            self._pause = self._first_pause
        self._pause_again(reason)

    def _pause_again(self, reason: str) -> None:
        self.reason = reason
        self._probing = False
        self._succeeded = 0
        self._ask_at = self._clock() + self._spread()

    def _spread(self) -> float:
        return self._pause * (0.5 + 0.5 * self._dice())
