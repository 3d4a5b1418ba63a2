"""Spans as a tree of text. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

RESERVE_SPAN = "router.reserve"
RESERVE_REPLY = "pagemill.reserve_reply"

_PREFIX = "pagemill-"

_SHOWN = {
    "pagemill.replica": "replica",
    "pagemill.admission_mode": "admission",
    "pagemill.policy": "policy",
    "pagemill.need_blocks": "need",
    "pagemill.attempt": "attempt",
    "pagemill.cached_tokens": "cached",
    "gen_ai.usage.input_tokens": "in",
    "gen_ai.usage.output_tokens": "out",
    "error.type": "error",
}
"""Attributes worth a place in the tree, and what they are called there."""


@dataclass(frozen=True, slots=True)
class SpanRecord:
    """A span; times in seconds since the epoch, ids in hexadecimal, `parent_id` empty at a root."""

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    start: float
    end: float
    service: str
    pid: int
    attributes: Mapping[str, Any]
    failed: bool = False


def processes(spans: Sequence[SpanRecord]) -> set[tuple[str, int]]:
    """Service and process id of every process that took part."""
    return {(span.service, span.pid) for span in spans}


def tree_lines(spans: Sequence[SpanRecord], width: int | None = None) -> list[str]:
    """The tree, one line for each span: name, start after the first span, duration, service, process id, attributes.

    width: the most characters of a line. To fit, first services lose what all their names begin with, then process
    ids go, then lines are cut, an ellipsis at their end.
    """
    if not spans:
        return []
    drawn = list(_walk(spans))
    whole = [
        _lines(drawn, prefix=prefix, pids=pids) for prefix, pids in (("", True), (_PREFIX, True), (_PREFIX, False))
    ]
    if width is None:
        return whole[0]
    fitting = next((lines for lines in whole if max(map(len, lines)) <= width), whole[-1])
    return [line if len(line) <= width else line[: width - 1] + "…" for line in fitting]


def _lines(drawn: Sequence[tuple[str, SpanRecord]], *, prefix: str, pids: bool) -> list[str]:
    """Whole lines, without `prefix` before the services, and with or without process ids."""
    begin = min(span.start for _, span in drawn)
    services = [span.service.removeprefix(prefix) for _, span in drawn]
    width = max(len(branches) + len(span.name) for branches, span in drawn)
    service_width = max(map(len, services))
    lines = []
    for (branches, span), service in zip(drawn, services, strict=True):
        label = f"{branches}{span.name}".ljust(width)
        times = f"+{(span.start - begin) * 1000:7.1f} ms {(span.end - span.start) * 1000:8.1f} ms"
        facts = " ".join(f"{short}={span.attributes[key]}" for key, short in _SHOWN.items() if key in span.attributes)
        process = service.ljust(service_width) + (f" pid {span.pid}" if pids else "")
        mark = " FAILED" if span.failed else ""
        lines.append(f"{label}  {times}  {process}{mark}  {facts}".rstrip())
    return lines


def reserve_replies(spans: Sequence[SpanRecord]) -> list[str]:
    """What the reserve script answered, in order."""
    with_reply = [span for span in spans if RESERVE_REPLY in span.attributes]
    return [str(span.attributes[RESERVE_REPLY]) for span in sorted(with_reply, key=lambda s: s.start)]


def _walk(spans: Sequence[SpanRecord]) -> Iterator[tuple[str, SpanRecord]]:
    """Spans depth first, each with the branches drawn before its name; orphans are roots."""
    known = {span.span_id for span in spans}
    children: dict[str, list[SpanRecord]] = {}
    for span in sorted(spans, key=lambda s: (s.start, s.end)):
        children.setdefault(span.parent_id if span.parent_id in known else "", []).append(span)

    def below(parent: str, indent: str) -> Iterator[tuple[str, SpanRecord]]:
        siblings = children.get(parent, [])
        for position, span in enumerate(siblings):
            last = position == len(siblings) - 1
            yield indent + ("└─ " if last else "├─ "), span
            yield from below(span.span_id, indent + ("   " if last else "│  "))

    for root in children.get("", []):
        yield "", root
        yield from below(root.span_id, "")
