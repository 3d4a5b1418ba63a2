"""A bench on which time, order of arrival and script text are in the test's hands."""

from __future__ import annotations

import dataclasses
import itertools
import json
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import redis

from pagemill_common.capacity import (
    Beat,
    BeatReply,
    Candidate,
    CapacitySettings,
    Granted,
    Refused,
    Reserve,
    ReserveReply,
    wire,
)
from pagemill_common.capacity.keys import Keys
from pagemill_common.capacity.scripts import Script, ScriptSet

# Seconds of the bench's own clock. Long, so that the server's own clock, by which keys vanish, never matters in a test.
SLOW = CapacitySettings(ttl=60, max_ttl=200, stale_after=20, record_ttl=300, hold_ttl=20, max_seen=64)

START_MS = 1_800_000_000_000


class Bench:
    """The scripts on a real server under a clock that only `advance` moves."""

    def __init__(self, client: redis.Redis, settings: CapacitySettings = SLOW) -> None:
        self.client = client
        self.settings = settings
        self.keys = Keys(uuid.uuid4().hex)
        self._clock_key = f"test:{{{self.keys.pool}}}:clock"
        self.scripts = ScriptSet(
            clock=f"local function now_ms() return tonumber(redis.call('GET', '{self._clock_key}')) end"
        )
        self._seqs: dict[str, Iterator[int]] = {}
        self.now_ms = START_MS
        self.advance(0)

    def edit(self, name: str, old: str, new: str) -> None:
        """Changes the text of one script, in all its places."""
        text = getattr(self.scripts, name).text
        assert old in text, f"{name}.lua does not hold {old!r}"
        setattr(self.scripts, name, Script.of(text.replace(old, new)))

    def use(self, **changes: Any) -> None:
        """Changes settings."""
        self.settings = dataclasses.replace(self.settings, **changes)

    def advance(self, seconds: float) -> None:
        self.now_ms += round(seconds * 1000)
        self.client.set(self._clock_key, self.now_ms)

    def run(self, script: Script, keys: Sequence[str], args: Sequence[Any]) -> Any:
        try:
            return self.client.evalsha(script.sha, len(keys), *keys, *args)
        except redis.exceptions.NoScriptError:
            return self.client.eval(script.text, len(keys), *keys, *args)

    def beat(self, name: str = "r1", *, epoch: str = "e", not_after_s: float | None = None, **fields: Any) -> BeatReply:
        """A heartbeat with the next number of its replica unless `seq` is given."""
        numbers = self._seqs.setdefault(f"{name}:{epoch}", itertools.count(1))
        values = {"capacity": 100, "block_size": 16, "model": "m", "model_id": "id", "address": f"{name}:1"} | fields
        beat = Beat(name=name, epoch=epoch, **values)
        if not beat.seq:
            beat = dataclasses.replace(beat, seq=next(numbers))
        not_after = 0 if not_after_s is None else self.now_ms + round(not_after_s * 1000)
        keys, args = wire.encode_beat(self.keys, beat, self.settings, not_after)
        return wire.decode_beat(json.loads(self.run(self.scripts.heartbeat, keys, args)), beat)

    def reserve_all(self, *requests: Reserve, not_after_s: float = 10) -> list[ReserveReply]:
        keys, args = wire.encode_reserve(self.keys, requests, self.settings, self.now_ms + round(not_after_s * 1000))
        return wire.decode_reserve(json.loads(self.run(self.scripts.reserve, keys, args)), requests)

    def reserve(self, request: Reserve, not_after_s: float = 10) -> ReserveReply:
        return self.reserve_all(request, not_after_s=not_after_s)[0]

    def granted(self, request: Reserve, **more: Any) -> Granted:
        reply = self.reserve(request, **more)
        assert isinstance(reply, Granted), reply
        return reply

    def refused(self, request: Reserve, **more: Any) -> Refused:
        reply = self.reserve(request, **more)
        assert isinstance(reply, Refused), reply
        return reply

    def release(self, reservation_id: str, *replicas: str) -> bool:
        keys = [self.keys.reservation(reservation_id), *(self.keys.pending(r) for r in replicas)]
        ttl = wire.milliseconds(self.settings.tombstone_ttl)
        return bool(self.run(self.scripts.release, keys, [reservation_id, ttl]))


def ask(reservation_id: str, *candidates: str | tuple[str, int] | tuple[str, int, float], **more: Any) -> Reserve:
    """A Reserve. A candidate is a replica's name (10 blocks), or name, need, cost; its epoch is 'e' unless given."""
    made = []
    for candidate in candidates:
        name, need, cost = ((candidate, 10, 0.0) if isinstance(candidate, str) else (*candidate, 0.0))[:3]
        made.append(Candidate(name if ":" in name else f"{name}:e", need, cost))
    return Reserve(reservation_id, tuple(made), **more)
