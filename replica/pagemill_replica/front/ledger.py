"""The replica's one book of what it has promised: pure, its clock passed in.

Every request is charged here in the loop turn in which it is accepted, so that none is between two books, and stays
charged until the engine has given its blocks back. A reservation in Redis is only a hint to routers; what fits this
ledger is taken, also under a reservation that has expired, and what does not fit is refused.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum


class LedgerRefusal(StrEnum):
    """Why a request was not accepted."""

    FULL = "full"
    """It does not fit beside what is committed."""
    TOO_LARGE = "too_large"
    """It would not fit an empty cache."""
    SUPERSEDED = "superseded"
    """A higher attempt of the same call has been here."""
    ENDED = "ended"
    """This attempt of the call has been here and has ended."""
    CLOSED = "closed"
    """The replica takes nothing any more."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """The request is charged."""

    key: int
    """The key under which it is charged: the one given, or that of the same attempt's first arrival."""
    again: bool = False
    """The same attempt was charged already; it is charged once."""
    supersedes: tuple[int, ...] = ()
    """Keys of lower attempts of the call, to be aborted. Each stays charged until `end`."""


@dataclass(frozen=True, slots=True)
class RefusedHere:
    """The request is not charged."""

    reason: LedgerRefusal
    free_blocks: int


@dataclass(slots=True)
class _Entry:
    call: tuple[str, int]
    reservation_id: str
    need: int
    held: int = 0

    @property
    def charge(self) -> int:
        return max(self.held, self.need)


class Ledger:
    """What `capacity_blocks` blocks of an allocator are promised to.

    `committed` is the sum over live requests of max(held, need). `accept` never takes it above the capacity; a
    request whose output outgrows its admission can, and then nothing is accepted until it is below again.

    Ids of reservations that were accepted, refused or ended are kept for the heartbeats until `acknowledge`, and at
    most `seen_life` seconds: by then the reservation has expired in Redis. The highest attempt of a call is
    remembered for the latest `remembered_calls` calls, so that a late copy of an attempt is neither run twice nor
    charged.
    """

    def __init__(
        self,
        capacity_blocks: int,
        *,
        clock: Callable[[], float],
        seen_life: float = 30.0,
        remembered_calls: int = 4096,
        on_seen: Callable[[str], None] | None = None,
    ) -> None:
        if capacity_blocks < 1 or seen_life <= 0 or remembered_calls < 1:
            raise ValueError("capacity_blocks, seen_life and remembered_calls must be above 0")
        self.capacity = capacity_blocks
        self._clock = clock
        self._seen_life = seen_life
        self._remembered_calls = remembered_calls
        self._on_seen = on_seen
        self._entries: dict[int, _Entry] = {}
        self._live: dict[str, dict[int, int]] = {}
        self._attempts: OrderedDict[str, int] = OrderedDict()
        self._seen: OrderedDict[str, float] = OrderedDict()
        self._committed = 0
        self._closed = False

    @property
    def committed(self) -> int:
        """Blocks promised or held."""
        return self._committed

    @property
    def free(self) -> int:
        """Blocks that a further request may take; negative where output outgrew what was admitted."""
        return self.capacity - self._committed

    @property
    def live(self) -> int:
        """Requests charged."""
        return len(self._entries)

    def close(self) -> None:
        """Refuses everything from here on."""
        self._closed = True

    def accept(
        self, call_id: str, attempt: int, key: int, need: int, reservation_id: str = ""
    ) -> Accepted | RefusedHere:
        """Charges attempt `attempt` of call `call_id` with `need` blocks (at least 1) under the engine's `key`, or
        says why not.

        The same attempt again is the same acceptance. The reservation, where there is one, is seen either way.
        Choices of one call are accepted one by one, each under a call id of its own.
        """
        if need < 1:
            raise ValueError("need must be at least 1")
        if key in self._entries and self._entries[key].call != (call_id, attempt):
            raise ValueError(f"key {key} is in use")
        self._see(reservation_id)
        live = self._live.get(call_id, {})
        highest = max(self._attempts.get(call_id, 0), *live, 0)
        if attempt == highest and attempt in live:
            return Accepted(live[attempt], again=True)
        refusal = self._refusal(attempt, highest, need)
        if refusal is not None:
            return RefusedHere(refusal, self.free)
        self._remember(call_id, attempt)
        self._entries[key] = _Entry((call_id, attempt), reservation_id, need)
        self._live[call_id] = {**live, attempt: key}
        self._committed += need
        return Accepted(key, supersedes=tuple(live.values()))

    def _refusal(self, attempt: int, highest: int, need: int) -> LedgerRefusal | None:
        if attempt < highest:
            return LedgerRefusal.SUPERSEDED
        if attempt == highest:
            return LedgerRefusal.ENDED
        if self._closed:
            return LedgerRefusal.CLOSED
        if need > self.capacity:
            return LedgerRefusal.TOO_LARGE
        return LedgerRefusal.FULL if need > self.free else None

    def update_held(self, held_blocks: Mapping[int, int]) -> None:
        """Takes the engine's counts of blocks held, by key. Keys that have ended are skipped."""
        for key, held in held_blocks.items():
            entry = self._entries.get(key)
            if entry is not None:
                before = entry.charge
                entry.held = held
                self._committed += entry.charge - before

    def end(self, key: int) -> bool:
        """The engine has given the blocks of `key` back. Returns whether it was charged."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return False
        call_id, attempt = entry.call
        del self._live[call_id][attempt]
        if not self._live[call_id]:
            del self._live[call_id]
        self._committed -= entry.charge
        self._see(entry.reservation_id)
        return True

    def end_all(self) -> None:
        """The engine has gone and holds nothing."""
        for key in list(self._entries):
            self.end(key)

    def refuse(self, reservation_id: str) -> None:
        """A request was refused before it came to `accept`, under another epoch for example."""
        self._see(reservation_id)

    def seen(self, limit: int = 512) -> tuple[str, ...]:
        """The oldest ids that no heartbeat has delivered, for the next one."""
        self._forget_old()
        return tuple(reservation_id for reservation_id, _ in zip(self._seen, range(limit), strict=False))

    def acknowledge(self, ids: Iterable[str]) -> None:
        """A heartbeat that carried these ids stands in Redis."""
        for reservation_id in ids:
            self._seen.pop(reservation_id, None)

    def _see(self, reservation_id: str) -> None:
        if not reservation_id:
            return
        self._seen[reservation_id] = self._clock()
        self._seen.move_to_end(reservation_id)
        self._forget_old()
        if self._on_seen is not None:
            self._on_seen(reservation_id)

    def _forget_old(self) -> None:
        oldest = self._clock() - self._seen_life
        while self._seen:
            reservation_id, since = next(iter(self._seen.items()))
            if since > oldest:
                return
            del self._seen[reservation_id]

    def _remember(self, call_id: str, attempt: int) -> None:
        self._attempts[call_id] = attempt
        self._attempts.move_to_end(call_id)
        while len(self._attempts) > self._remembered_calls:
            self._attempts.popitem(last=False)
