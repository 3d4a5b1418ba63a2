"""What watching routers hear of the prefix cache and of reservations."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagemill_common.errors import StatusError
from pagemill_replica.front import watch
from pagemill_replica.front.watch import Watcher, WatchHub


def apply(known: set[bytes], hub: WatchHub, watcher: Watcher) -> set[bytes]:
    for changes in hub.take_changes(watcher):
        if changes.snapshot:
            known = set()
        known = (known | set(changes.stored)) - set(changes.removed)
    return known


def test_first_message_is_a_snapshot_of_what_is_cached() -> None:
    hub = WatchHub()
    hub.kv_changed([b"a", b"b"], [])
    hub.kv_changed([], [b"a"])
    with hub.watching("r") as watcher:
        first = list(hub.take_changes(watcher))
        assert [(c.snapshot, c.stored, c.removed) for c in first] == [(True, [b"b"], [])]
        hub.kv_changed([b"c"], [b"b"])
        assert [(c.snapshot, c.stored, c.removed) for c in hub.take_changes(watcher)] == [(False, [b"c"], [b"b"])]


def test_nothing_changed_still_makes_one_message() -> None:
    hub = WatchHub()
    with hub.watching("r") as watcher:
        list(hub.take_changes(watcher))
        assert [(c.snapshot, c.stored, c.removed) for c in hub.take_changes(watcher)] == [(False, [], [])]


def test_backlog_that_overflows_becomes_a_snapshot_and_stays_bounded() -> None:
    hub = WatchHub(backlog=3)
    with hub.watching("r") as watcher:
        list(hub.take_changes(watcher))
        for i in range(100):
            hub.kv_changed([bytes([i])], [])
            assert len(watcher.pending) <= 3
        changes = list(hub.take_changes(watcher))
        assert changes[0].snapshot
        assert len(changes[0].stored) == 100


def test_large_snapshot_comes_in_messages_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "SNAPSHOT_CHUNK", 4)
    hub = WatchHub()
    hub.kv_changed([bytes([i]) for i in range(10)], [])
    with hub.watching("r") as watcher:
        changes = list(hub.take_changes(watcher))
    assert [len(c.stored) for c in changes] == [4, 4, 2]
    assert [c.snapshot for c in changes] == [True, False, False]


def test_routers_are_counted_once_each_while_they_watch() -> None:
    hub = WatchHub()
    with hub.watching("r1"), hub.watching("r1"), hub.watching("r2"):
        assert hub.distinct_routers == 2
    assert hub.distinct_routers == 0


def test_too_many_watchers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "MAX_WATCHERS", 1)
    hub = WatchHub()
    with hub.watching("r1"), pytest.raises(StatusError), hub.watching("r2"):
        pass


def test_seen_reservations_reach_each_watcher_once_and_are_bounded() -> None:
    hub = WatchHub(backlog=2)
    with hub.watching("r1") as one, hub.watching("r2") as two:
        hub.seen("")
        for name in ("a", "b", "a", "c"):
            hub.seen(name)
        assert one.take_seen() == ["b", "c"]
        assert one.take_seen() == []
        assert two.take_seen() == ["b", "c"]


@given(st.lists(st.one_of(st.none(), st.tuples(st.booleans(), st.integers(0, 7))), max_size=60), st.integers(1, 4))
def test_watcher_that_reads_at_any_time_ends_up_with_the_truth(
    script: list[tuple[bool, int] | None], backlog: int
) -> None:
    hub = WatchHub(backlog=backlog)
    truth: set[bytes] = set()
    known: set[bytes] = set()
    with hub.watching("r") as watcher:
        for action in script:
            if action is None:
                known = apply(known, hub, watcher)
                assert known == truth
                continue
            stored, name = action[0], bytes([action[1]])
            if stored == (name in truth):
                continue
            truth ^= {name}
            hub.kv_changed([name] if stored else [], [] if stored else [name])
        assert apply(known, hub, watcher) == truth
