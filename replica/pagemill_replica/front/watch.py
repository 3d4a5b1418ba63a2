"""What each watching router has yet to hear: changes of the prefix cache and reservations seen.

Changes wait as their net effect, one entry a hash. Where more gather than the backlog holds, the watcher gets a new
snapshot instead, so that a router that stops reading costs a bounded amount of memory.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from pagemill_common import errors

MAX_WATCHERS = 512
"""Streams at once; more get RESOURCE_EXHAUSTED."""
SNAPSHOT_CHUNK = 16_384
"""Hashes in one message: half a megabyte."""


@dataclass(frozen=True, slots=True)
class KvChanges:
    """Part of a WatchState message."""

    snapshot: bool
    stored: list[bytes]
    removed: list[bytes]


@dataclass(eq=False, slots=True)
class Watcher:
    """One stream's backlog."""

    router: str
    backlog: int
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    needs_snapshot: bool = True
    pending: dict[bytes, bool] = field(default_factory=dict)
    """Hash to whether it is stored."""
    seen: dict[str, None] = field(default_factory=dict)

    def note(self, stored: Iterable[bytes], removed: Iterable[bytes]) -> None:
        """Adds changes; drops all for a snapshot where they pass the backlog."""
        if self.needs_snapshot:
            return
        for block_hash in stored:
            self.pending[block_hash] = True
        for block_hash in removed:
            self.pending[block_hash] = False
        if len(self.pending) > self.backlog:
            self.pending = {}
            self.needs_snapshot = True

    def note_seen(self, reservation_id: str) -> None:
        """Adds a reservation; the oldest leaves where they pass the backlog, since ids expire by themselves."""
        self.seen[reservation_id] = None
        if len(self.seen) > self.backlog:
            del self.seen[next(iter(self.seen))]

    def take_seen(self) -> list[str]:
        """The reservations since the last call, oldest first."""
        seen, self.seen = self.seen, {}
        return list(seen)


class WatchHub:
    """Owns the picture of the prefix cache and the watchers."""

    def __init__(self, backlog: int = 65_536) -> None:
        self._backlog = backlog
        self._cached: dict[bytes, None] = {}
        self._watchers: set[Watcher] = set()

    @property
    def cached_blocks(self) -> int:
        """Hashes in the prefix cache."""
        return len(self._cached)

    @property
    def distinct_routers(self) -> int:
        """Routers that watch, each counted once."""
        return len(Counter(watcher.router for watcher in self._watchers))

    @contextmanager
    def watching(self, router: str) -> Iterator[Watcher]:
        """Enters a watcher for as long as its stream lives. Raises RESOURCE_EXHAUSTED where there are too many."""
        if len(self._watchers) >= MAX_WATCHERS:
            raise errors.replica_full(5.0, f"{MAX_WATCHERS} streams watch this replica already")
        watcher = Watcher(router, self._backlog)
        self._watchers.add(watcher)
        self.wake()
        try:
            yield watcher
        finally:
            self._watchers.discard(watcher)
            self.wake()

    def kv_changed(self, stored: list[bytes], removed: list[bytes]) -> None:
        """Takes one step's net changes: no hash is in both."""
        if not stored and not removed:
            return
        for block_hash in stored:
            self._cached[block_hash] = None
        for block_hash in removed:
            self._cached.pop(block_hash, None)
        for watcher in self._watchers:
            watcher.note(stored, removed)
            watcher.changed.set()

    def seen(self, reservation_id: str) -> None:
        """A reservation was accepted, refused or ended."""
        if not reservation_id:
            return
        for watcher in self._watchers:
            watcher.note_seen(reservation_id)
            watcher.changed.set()

    def wake(self) -> None:
        """Something else about the replica has changed."""
        for watcher in self._watchers:
            watcher.changed.set()

    def take_changes(self, watcher: Watcher) -> Iterator[KvChanges]:
        """What `watcher` has to hear of the cache, in messages of bounded size; at least one."""
        if watcher.needs_snapshot:
            watcher.needs_snapshot = False
            watcher.pending = {}
            stored, removed, snapshot = list(self._cached), [], True
        else:
            pending, watcher.pending = watcher.pending, {}
            stored = [block_hash for block_hash, present in pending.items() if present]
            removed = [block_hash for block_hash, present in pending.items() if not present]
            snapshot = False
        yield KvChanges(snapshot, stored[:SNAPSHOT_CHUNK], removed[:SNAPSHOT_CHUNK])
        for start in range(SNAPSHOT_CHUNK, max(len(stored), len(removed)), SNAPSHOT_CHUNK):
            end = start + SNAPSHOT_CHUNK
            yield KvChanges(False, stored[start:end], removed[start:end])
