"""Which callers' request ids are live on this router."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from pagemill_common import errors

MOST_RETRIES = 4
"""gRPC makes at most five attempts of one call, whatever a client's policy says."""


class LiveIds:
    """Counts live calls by the caller's id."""

    def __init__(self) -> None:
        self._live: Counter[str] = Counter()
        self._total = 0

    def __len__(self) -> int:
        return self._total

    @contextmanager
    def claim(self, request_id: str, *, previous_attempts: int = 0) -> Iterator[None]:
        """Holds the id until the block is left; ALREADY_EXISTS where it is live.

        `previous_attempts`: how many times gRPC itself says to have tried this call before. Each of those has failed
        for the caller, though its end may not have been noticed here, so the call may stand beside as many and no more.
        The number is the caller's word, and an earlier attempt may have come over another connection, so that nothing
        here can tell it from an invention: what bounds it is gRPC's own limit.
        """
        if self._live[request_id] > min(previous_attempts, MOST_RETRIES):
            raise errors.already_exists(request_id)
        self._live[request_id] += 1
        self._total += 1
        try:
            yield
        finally:
            self._total -= 1
            self._live[request_id] -= 1
            if self._live[request_id] <= 0:
                del self._live[request_id]


def previous_attempts(value: str | bytes | None) -> int:
    """What gRPC's header of earlier attempts says; 0 where it is missing or no number."""
    text = value.decode("ascii", "replace") if isinstance(value, bytes) else value or ""
    return int(text) if len(text) <= 4 and text.isascii() and text.isdigit() else 0
