"""What follows from the pool's figures: pure functions."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from pagemill_common.capacity.types import Figures, Reserve, Standing

MIN_RETRY = 0.05
MAX_RETRY = 5.0
DEFAULT_RETRY = 0.25
"""Seconds; the default is one heartbeat, after which the figures are others."""


def retry_after(request: Reserve, figures: Iterable[Figures]) -> float:
    """Seconds until the request is most likely to find room.

    A running replica gives blocks back about as fast as it fills them: tokens per second / block size. The missing
    blocks over that rate is the wait there, and the shortest wait over the candidates is the hint, within [MIN_RETRY,
    MAX_RETRY].
    """
    by_key = {f.replica: f for f in figures}
    waits = []
    for candidate in request.candidates:
        known = by_key.get(candidate.replica)
        if known is None or known.standing is not Standing.READY or candidate.need > known.capacity:
            continue
        missing = candidate.need - known.free + known.held
        rate = known.tokens_per_second / known.block_size if known.block_size else 0.0
        waits.append(missing / rate if rate > 0 else DEFAULT_RETRY)
    return min(max(min(waits, default=DEFAULT_RETRY), MIN_RETRY), MAX_RETRY)


def redis_trusted(watched: Collection[str], fresh: Collection[str]) -> bool:
    """Whether Redis knows enough to admit by: at least half of the replicas that routers watch are fresh in it.

    Both hold replica keys. With nothing watched there is nothing to contradict Redis.
    """
    return 2 * len(set(watched) & set(fresh)) >= len(set(watched))


def local_room(capacity: int, committed: int, watching_routers: int, unlisted_sends: int) -> int:
    """Blocks that one router may fill on a replica while Redis is gone: 0.8 x (capacity - committed) / routers - own
    unlisted sends.

    `watching_routers` is what the replica's WatchState reports, `unlisted_sends` the blocks that this router sent
    there and the replica has not yet listed as accepted. Never negative.
    """
    share = 8 * max(capacity - committed, 0) // (10 * max(watching_routers, 1))
    return max(share - unlisted_sends, 0)
