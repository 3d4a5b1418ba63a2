"""How calls and replies look to the scripts: pure functions between typed values and keys, arguments and JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pagemill_common.capacity.figures import retry_after
from pagemill_common.capacity.keys import Keys
from pagemill_common.capacity.settings import CapacitySettings
from pagemill_common.capacity.types import (
    Beat,
    BeatReply,
    BeatStatus,
    Figures,
    Granted,
    Member,
    Refused,
    RefusedReason,
    Reserve,
    ReserveReply,
    Standing,
)

Args = list[str | int | float]


def milliseconds(seconds: float) -> int:
    """Whole milliseconds, as scripts count them."""
    return round(seconds * 1000)


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def encode_beat(keys: Keys, beat: Beat, settings: CapacitySettings, not_after: int) -> tuple[list[str], Args]:
    """Keys and arguments of heartbeat.lua. `not_after` in Redis milliseconds, 0 for never."""
    replica = beat.key
    head = {
        "replica": replica,
        "seq": beat.seq,
        "seen": beat.seen,
        "block_size": beat.block_size,
        "model_id": beat.model_id,
        "not_after": not_after,
        "record_ttl": milliseconds(settings.record_ttl),
        "tombstone_ttl": milliseconds(settings.tombstone_ttl),
        "max_ttl": milliseconds(settings.max_ttl),
        "reap": settings.reap_limit,
    }
    record: dict[str, str | int | float] = {
        "name": beat.name,
        "epoch": beat.epoch,
        "address": beat.address,
        "model": beat.model,
        "model_id": beat.model_id,
        "block_size": beat.block_size,
        "capacity": beat.capacity,
        "used": beat.used,
        "committed": beat.committed,
        "waiting": beat.waiting,
        "running": beat.running,
        "draining": int(beat.draining),
        "throughput": round(beat.tokens_per_second, 3),
    }
    names = [keys.facts, keys.roster, keys.record(replica), keys.pending(replica)]
    names += [keys.reservation(seen) for seen in beat.seen]
    return names, [_json(head), *(part for pair in record.items() for part in pair)]


def decode_beat(answer: Mapping[str, Any], beat: Beat) -> BeatReply:
    """The reply of heartbeat.lua to `beat`."""
    status = BeatStatus(answer["status"])
    # The number of this very beat in Redis means that an earlier copy of it arrived.
    acknowledged = status is BeatStatus.OK or (status is BeatStatus.OLD and answer["seq"] == beat.seq)
    message = ""
    if status is BeatStatus.REFUSED:
        name = answer["field"]
        message = f"the pool has {name} {answer['pool']}, this replica has {getattr(beat, name)}"
    return BeatReply(status, acknowledged, int(answer.get("pending", 0)), message)


def encode_reserve(
    keys: Keys, requests: Sequence[Reserve], settings: CapacitySettings, not_after: int
) -> tuple[list[str], Args]:
    """Keys and arguments of reserve.lua. `not_after` in Redis milliseconds."""
    index: dict[str, int] = {}
    members = []
    for request in requests:
        candidates = [[index.setdefault(c.replica, len(index) + 1), c.cost, c.need] for c in request.candidates]
        members.append(
            {
                "id": request.id,
                "c": candidates,
                "priority": request.priority,
                "ceiling": round(settings.ceiling(request.priority) * 1000),
                "band": settings.cost_band if request.band is None else request.band,
                "hold": request.hold,
            }
        )
    ask = {
        "replicas": list(index),
        "members": members,
        "not_after": not_after,
        "ttl": milliseconds(settings.ttl),
        "max_ttl": milliseconds(settings.max_ttl),
        "stale": milliseconds(settings.stale_after),
        "hold_ttl": milliseconds(settings.hold_ttl),
        "reap": settings.reap_limit,
    }
    names = [name for replica in index for name in (keys.record(replica), keys.pending(replica))]
    return names + [keys.reservation(r.id) for r in requests], [_json(ask)]


def decode_reserve(answer: Mapping[str, Any], requests: Sequence[Reserve]) -> list[ReserveReply]:
    """The replies of reserve.lua, one for each request in order."""
    figures = tuple(_figures(f) for f in answer["figures"])
    replies: list[ReserveReply] = []
    for request, result in zip(requests, answer["results"], strict=True):
        reason = result.get("refused")
        if reason is not None:
            wait = retry_after(request, figures)
            replies.append(Refused(request.id, RefusedReason(reason), wait, result.get("hold", ""), figures))
            continue
        left = (result["expires"] - answer["now"]) / 1000
        again = bool(result.get("again", False))
        replies.append(Granted(request.id, result["replica"], int(result["need"]), left, again, figures))
    return replies


def _figures(raw: Mapping[str, Any]) -> Figures:
    age = raw["age"]
    standing = Standing(raw["standing"])
    return Figures(
        replica=raw["replica"],
        standing=standing,
        capacity=int(raw["capacity"]),
        used=int(raw["used"]),
        committed=int(raw["committed"]),
        pending=int(raw["pending"]),
        held=int(raw["held"]),
        waiting=int(raw["waiting"]),
        running=int(raw["running"]),
        tokens_per_second=float(raw["throughput"]),
        block_size=int(raw["block_size"]),
        age=None if standing is Standing.UNKNOWN else age / 1000,
    )


def decode_members(
    replicas: Sequence[str], answers: Sequence[Any], now_ms: int, settings: CapacitySettings
) -> list[Member]:
    """Members from the record and the pending values of each replica, two answers for each.

    A record that has expired is left out. Of several epochs at one address the youngest stays: one process listens
    there.
    """
    found: dict[str, Member] = {}
    for replica, raw, pending in zip(replicas, answers[::2], answers[1::2], strict=True):
        fields = {k.decode(): v.decode() for k, v in raw.items()}
        if "name" not in fields or "at" not in fields:
            continue
        member = _member(replica, fields, [v.decode() for v in pending], now_ms, settings)
        other = found.get(member.address)
        if other is None or other.since < member.since:
            found[member.address] = member
    return sorted(found.values(), key=lambda m: m.key)


def _member(
    replica: str, fields: Mapping[str, str], pending: Iterable[str], now_ms: int, settings: CapacitySettings
) -> Member:
    age = now_ms - int(fields["at"])
    standing = Standing.DRAINING if fields["draining"] == "1" else Standing.READY
    if not 0 <= age <= milliseconds(settings.stale_after):
        standing = Standing.STALE
    max_ttl = milliseconds(settings.max_ttl)
    figures = Figures(
        replica=replica,
        standing=standing,
        capacity=int(fields["capacity"]),
        used=int(fields["used"]),
        committed=int(fields["committed"]),
        pending=_live_sum(pending, now_ms, max_ttl),
        held=_live_sum([fields["hold"]] if "hold" in fields else [], now_ms, max_ttl),
        waiting=int(fields["waiting"]),
        running=int(fields["running"]),
        tokens_per_second=float(fields["throughput"]),
        block_size=int(fields["block_size"]),
        age=age / 1000,
    )
    return Member(
        name=fields["name"],
        epoch=fields["epoch"],
        address=fields["address"],
        model=fields["model"],
        model_id=fields["model_id"],
        block_size=int(fields["block_size"]),
        since=int(fields["since"]) / 1000,
        figures=figures,
    )


def _live_sum(entries: Iterable[str], now_ms: int, max_ttl: int) -> int:
    """The needs of '<expiry ms> <need> ...' entries that live, by the rule of common.lua."""
    total = 0
    for entry in entries:
        expiry, need = entry.split(" ")[:2]
        if now_ms < int(expiry) <= now_ms + max_ttl:
            total += int(need)
    return total
