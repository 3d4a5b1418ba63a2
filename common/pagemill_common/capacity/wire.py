"""How calls and replies look to the scripts: pure functions between typed values and keys, arguments and JSON."""

from __future__ import annotations

import json
import re
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

_MAX_COUNT = 2**32 - 1
_MAX_TIME = 10**13 - 1
"""As MAX_COUNT and MAX_TIME of common.lua."""
_WHOLE = re.compile(r"[0-9]+")
_DECIMAL = re.compile(r"[0-9]+\.?[0-9]*")


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

    A record that has expired, or is of another replica, is left out; one with figures that cannot be read is stale. Of
    several epochs at one address the youngest stays: one process listens there.
    """
    found: dict[str, Member] = {}
    for replica, raw, pending in zip(replicas, answers[::2], answers[1::2], strict=True):
        fields = {_text(name): _text(value) for name, value in raw.items()}
        if "at" not in fields or f"{fields.get('name')}:{fields.get('epoch')}" != replica:
            continue
        member = _member(replica, fields, [_text(entry) for entry in pending], now_ms, settings)
        other = found.get(member.address)
        if other is None or other.since < member.since:
            found[member.address] = member
    return sorted(found.values(), key=lambda m: m.key)


def _member(
    replica: str, fields: Mapping[str, str], pending: Iterable[str], now_ms: int, settings: CapacitySettings
) -> Member:
    try:
        figures = _record_figures(replica, fields, pending, now_ms, settings)
    except (KeyError, ValueError):
        figures = Figures(replica, Standing.STALE)
    name, epoch = replica.split(":")
    return Member(
        name=name,
        epoch=epoch,
        address=fields.get("address", ""),
        model=fields.get("model", ""),
        model_id=fields.get("model_id", ""),
        block_size=figures.block_size,
        since=_since(fields) / 1000,
        figures=figures,
    )


def _record_figures(
    replica: str, fields: Mapping[str, str], pending: Iterable[str], now_ms: int, settings: CapacitySettings
) -> Figures:
    """By the rules of reserve.lua. Raises KeyError or ValueError where that script would find the record unreadable."""
    age = now_ms - _whole(fields["at"], _MAX_TIME)
    standing = Standing.DRAINING if fields["draining"] == "1" else Standing.READY
    if not 0 <= age <= milliseconds(settings.stale_after):
        standing = Standing.STALE
    max_ttl = milliseconds(settings.max_ttl)
    return Figures(
        replica=replica,
        standing=standing,
        capacity=_whole(fields["capacity"], _MAX_COUNT),
        used=_whole(fields["used"], _MAX_COUNT),
        committed=_whole(fields["committed"], _MAX_COUNT),
        pending=sum(_live_need(entry, now_ms, max_ttl) for entry in pending),
        held=_live_need(fields.get("hold", ""), now_ms, max_ttl),
        waiting=_whole(fields["waiting"], _MAX_COUNT),
        running=_whole(fields["running"], _MAX_COUNT),
        tokens_per_second=_decimal(fields["throughput"], _MAX_COUNT),
        block_size=_whole(fields["block_size"], _MAX_COUNT),
        age=age / 1000,
    )


def _live_need(entry: str, now_ms: int, max_ttl: int) -> int:
    """The need of a '<expiry ms> <need> ...' entry; 0 where it is dead by the rule of common.lua."""
    expiry, _, rest = entry.partition(" ")
    try:
        need = _whole(rest.partition(" ")[0], _MAX_COUNT)
        return need if now_ms < _whole(expiry, _MAX_TIME) <= now_ms + max_ttl else 0
    except ValueError:
        return 0


def _since(fields: Mapping[str, str]) -> int:
    try:
        return _whole(fields["since"], _MAX_TIME)
    except (KeyError, ValueError):
        return 0


def _text(raw: bytes) -> str:
    return raw.decode(errors="replace")


def _whole(text: str, most: int) -> int:
    """The number that `whole` of common.lua reads; ValueError where that reads none."""
    return int(_decimal(text, most, _WHOLE))


def _decimal(text: str, most: int, form: re.Pattern[str] = _DECIMAL) -> float:
    if not form.fullmatch(text) or not (number := float(text)) <= most:
        raise ValueError(f"{text[:32]!r} is no number up to {most}")
    return number
