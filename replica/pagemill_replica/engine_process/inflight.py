"""Which requests are with the engine, and when it last got on with them."""

from __future__ import annotations

from collections.abc import Callable

from pagemill_replica.engine.messages import StepReport


class Inflight:
    """Keys handed to the engine and not yet given back, and the time of its last progress."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` gives monotonic seconds."""
        self._clock = clock
        self._keys: set[int] = set()
        self._steps = 0
        self._progress_at = clock()

    def __contains__(self, key: int) -> bool:
        return key in self._keys

    @property
    def busy(self) -> bool:
        """Requests are with the engine."""
        return bool(self._keys)

    @property
    def last_progress(self) -> float:
        """When it last computed or ended something, or else got its first request."""
        return self._progress_at

    def submitted(self, key: int) -> None:
        """The engine has got a request."""
        if not self._keys:
            self._progress_at = self._clock()
        self._keys.add(key)

    def reported(self, report: StepReport) -> None:
        """Takes a report. One that neither computed nor ended anything is a sign of life, not of progress."""
        if report.ended or report.stats.steps != self._steps:
            self._progress_at = self._clock()
        self._steps = report.stats.steps
        self._keys.difference_update(ended.key for ended in report.ended)

    def clear(self) -> None:
        """The engine is gone and has nothing."""
        self._keys.clear()
