"""Which callers' request ids are live on this router."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from pagemill_common import errors


class LiveIds:
    """Counts live calls by the caller's id."""

    def __init__(self) -> None:
        self._live: Counter[str] = Counter()
        self._total = 0

    def __len__(self) -> int:
        return self._total

    @contextmanager
    def claim(self, request_id: str, *, retry: bool) -> Iterator[None]:
        """Holds the id until the block is left; ALREADY_EXISTS where it is live.

        `retry`: the call is gRPC's own retry of one that has failed for the caller, though its end may not have been
        noticed here. It is let in beside it.
        """
        if self._live[request_id] and not retry:
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
