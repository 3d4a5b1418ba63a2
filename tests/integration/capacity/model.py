"""What the scripts must do, said again in Python over plain dictionaries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pagemill_common.capacity import Beat, CapacitySettings, Reserve

Outcome = tuple[str, ...] | tuple[str, str, int]


@dataclass
class Record:
    seq: int
    at: int
    capacity: int
    committed: int
    draining: bool


@dataclass
class PoolModel:
    """Times in milliseconds."""

    settings: CapacitySettings
    records: dict[str, Record] = field(default_factory=dict)
    entries: dict[str, dict[str, tuple[int, int]]] = field(default_factory=dict)
    """Replica to id to (expiry, need)."""
    answers: dict[str, tuple[int, int, str] | None] = field(default_factory=dict)
    """Id to (expiry, need, replica), None for a tombstone."""

    def live(self, expiry: int, now: int) -> bool:
        return now < expiry <= now + self.settings.max_ttl * 1000

    def late(self, not_after: int, now: int) -> bool:
        return not self.live(not_after + 1, now)

    def pending(self, replica: str, now: int) -> int:
        return sum(need for expiry, need in self.entries.get(replica, {}).values() if self.live(expiry, now))

    def reap(self, replica: str, now: int) -> None:
        """What is dead when a script reads it is gone, also for a clock that is set back later."""
        entries = self.entries.get(replica, {})
        self.entries[replica] = {i: entry for i, entry in entries.items() if self.live(entry[0], now)}

    def standing(self, replica: str, now: int) -> str:
        record = self.records.get(replica)
        if record is None:
            return "unknown"
        if not 0 <= now - record.at <= self.settings.stale_after * 1000:
            return "stale"
        return "draining" if record.draining else "ready"

    def heartbeat(self, beat: Beat, not_after: int, now: int) -> str:
        record = self.records.get(beat.key)
        if record is not None and beat.seq <= record.seq:
            return "old"
        if self.late(not_after, now):
            return "late"
        self.records[beat.key] = Record(beat.seq, now, beat.capacity, beat.committed, beat.draining)
        for seen in beat.seen:
            self.entries.get(beat.key, {}).pop(seen, None)
            self.answers[seen] = None
        self.reap(beat.key, now)
        return "ok"

    def release(self, reservation_id: str, replicas: Sequence[str]) -> None:
        for replica in replicas:
            self.entries.get(replica, {}).pop(reservation_id, None)
        self.answers[reservation_id] = None

    def reserve(self, requests: Sequence[Reserve], not_after: int, now: int) -> list[Outcome]:
        for request in requests:
            for candidate in request.candidates:
                self.reap(candidate.replica, now)
        return [self._reserve_one(r, not_after, now) for r in requests]

    def _reserve_one(self, request: Reserve, not_after: int, now: int) -> Outcome:
        if request.id in self.answers:
            known = self.answers[request.id]
            if known is None:
                return ("seen",)
            if self.live(known[0], now):
                return ("granted", known[2], known[1])
        if self.late(not_after, now):
            return ("late",)
        fits = []
        for order, candidate in enumerate(request.candidates):
            if self.standing(candidate.replica, now) == "ready":
                record = self.records[candidate.replica]
                blocks = record.committed + self.pending(candidate.replica, now) + candidate.need
                if blocks <= record.capacity * self.settings.ceiling(request.priority):
                    fits.append((candidate.cost, blocks / record.capacity, order, candidate))
        if not fits:
            return (self._reason(request, now),)
        band = min(f[0] for f in fits) + (request.band or 0.0)
        chosen = min((f for f in fits if f[0] <= band), key=lambda f: (f[1], f[2]))[3]
        expiry = now + round(self.settings.ttl * 1000)
        self.entries.setdefault(chosen.replica, {})[request.id] = (expiry, chosen.need)
        self.answers[request.id] = (expiry, chosen.need, chosen.replica)
        return ("granted", chosen.replica, chosen.need)

    def _reason(self, request: Reserve, now: int) -> str:
        standings = [self.standing(c.replica, now) for c in request.candidates]
        ready = [c for c, s in zip(request.candidates, standings, strict=True) if s == "ready"]
        if ready:
            ceiling = self.settings.ceiling(request.priority)
            return "full" if any(c.need <= self.records[c.replica].capacity * ceiling for c in ready) else "too_large"
        return "draining" if all(s == "draining" for s in standings) else "stale"
