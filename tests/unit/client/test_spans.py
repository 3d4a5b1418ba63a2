"""Spans drawn as a tree."""

from __future__ import annotations

from pagemill.local.spans import RESERVE_REPLY, SpanRecord, processes, reserve_replies, tree_lines


def span(name: str, own: str, parent: str = "", start: float = 0.0, **rest: object) -> SpanRecord:
    values: dict[str, object] = {"service": "tier", "pid": 7, "attributes": {}, **rest}
    return SpanRecord("t", own, parent, name, start, start + 0.5, **values)  # type: ignore[arg-type]


def test_children_stand_below_their_parents_in_order_of_start() -> None:
    spans = [
        span("late", "c", "a", 1.2),
        span("leaf", "d", "b", 1.1, service="engine", pid=9, attributes={"gen_ai.usage.output_tokens": 3}),
        span("root", "a", "", 1.0),
        span("early", "b", "a", 1.05, failed=True),
    ]
    lines = tree_lines(spans)
    assert [line.partition("  +")[0].rstrip() for line in lines] == ["root", "├─ early", "│  └─ leaf", "└─ late"]
    assert "+   50.0 ms    500.0 ms" in lines[1]
    assert "FAILED" in lines[1]
    assert lines[2].endswith("engine pid 9  out=3")


def test_lines_fit_the_width_and_keep_the_tree() -> None:
    facts = {"pagemill.replica": "replica-0", "pagemill.policy": "prefix_affinity"}
    spans = [
        span("root", "a", "", 1.0, service="pagemill-client", pid=12345, attributes=facts),
        span("leaf", "b", "a", 1.1, service="pagemill-router", pid=12346, failed=True, attributes=facts),
    ]
    whole = tree_lines(spans)
    assert whole == tree_lines(spans, width=max(map(len, whole))), "nothing is left out where there is room"
    shorter = tree_lines(spans, width=max(map(len, whole)) - 1)
    assert "  client pid 12345  replica=replica-0 policy=prefix_affinity" in shorter[0]
    narrow = tree_lines(spans, width=60)
    assert max(map(len, narrow)) == 60
    assert [line.partition("  +")[0].rstrip() for line in narrow] == ["root", "└─ leaf"]
    assert narrow[0].endswith("client  replica=replica-0…")
    assert "router FAILED" in narrow[1]
    assert "pid" not in "".join(narrow)


def test_a_span_whose_parent_is_missing_is_a_root() -> None:
    assert tree_lines([span("orphan", "x", "gone")])[0].startswith("orphan")


def test_nothing_draws_nothing() -> None:
    assert tree_lines([]) == []


def test_processes_and_reserve_replies() -> None:
    spans = [
        span("router.reserve", "b", start=2.0, attributes={RESERVE_REPLY: "second"}),
        span("router.reserve", "a", start=1.0, attributes={RESERVE_REPLY: "first"}, pid=8),
    ]
    assert processes(spans) == {("tier", 7), ("tier", 8)}
    assert reserve_replies(spans) == ["first", "second"]
