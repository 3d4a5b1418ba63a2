"""What others have written over the pool's keys: it makes a record stale or counts as dead, and is gone soon."""

from __future__ import annotations

import pytest
from integration.capacity.bench import Bench, ask

from pagemill_common.capacity import BeatStatus, Figures, Granted, Member, Standing, wire

pytestmark = pytest.mark.redis

NO_COUNTS = (
    "-5",
    "99999999999999999999",
    "4294967296",
    "1.5",
    "1e3",
    "0x10",
    "inf",
    "nan",
    "",
    " 7",
    "7\n",
    "x",
    b"\xff",
)
GARBAGE = ("", "garbage", "garbage 5", "9999999999999999999 60", "x" * 13 + " 5", " ", b"\xff\xfe")


def members(bench: Bench, *replicas: str) -> list[Member]:
    answers = []
    for replica in replicas:
        answers += [
            bench.client.hgetall(bench.keys.record(replica)),
            bench.client.hvals(bench.keys.pending(replica)),
        ]
    return wire.decode_members(replicas, answers, bench.now_ms, bench.settings)


def read(bench: Bench) -> tuple[Figures, Figures]:
    """Figures of r1 as a reserve that cannot be granted tells them, and as discovery reads them."""
    told = bench.refused(ask(f"never{bench.client.incr('number')}", ("r1", 100_000))).figures[0]
    (member,) = members(bench, "r1:e")
    return told, member.figures


@pytest.mark.parametrize("value", NO_COUNTS)
@pytest.mark.parametrize("field", ["at", "capacity", "used", "committed", "waiting", "running", "block_size"])
def test_a_record_with_a_field_that_is_no_count_is_stale_until_the_next_beat(
    bench: Bench, field: str, value: str | bytes
) -> None:
    bench.beat("r1")
    bench.beat("r2")
    bench.client.hset(bench.keys.record("r1:e"), field, value)
    told, seen = read(bench)
    assert told.standing is seen.standing is Standing.STALE
    granted = bench.granted(ask("a", "r1", "r2"))
    assert granted.replica == "r2:e", "the other replica is not affected"
    bench.beat("r1", committed=7)
    told, seen = read(bench)
    assert told.standing is seen.standing is Standing.READY
    assert told.committed == seen.committed == 7


@pytest.mark.parametrize("value", ["-1", "inf", "nan", "9" * 400, "1e5", "x", ""])
def test_a_throughput_that_is_no_number_makes_a_record_stale(bench: Bench, value: str) -> None:
    bench.beat("r1", tokens_per_second=12.5)
    assert [figures.tokens_per_second for figures in read(bench)] == [12.5, 12.5]
    bench.client.hset(bench.keys.record("r1:e"), "throughput", value)
    assert [figures.standing for figures in read(bench)] == [Standing.STALE, Standing.STALE]


def test_the_largest_figures_that_messages_hold_are_read(bench: Bench) -> None:
    bench.beat("r1", capacity=2**32 - 1, committed=2**32 - 1, used=2**32 - 1)
    for figures in read(bench):
        assert (figures.standing, figures.capacity, figures.committed) == (Standing.READY, 2**32 - 1, 2**32 - 1)


@pytest.mark.parametrize("reader", ["heartbeat", "reserve"])
@pytest.mark.parametrize("value", GARBAGE)
def test_a_hold_that_none_of_us_wrote_counts_as_dead_and_is_removed(
    bench: Bench, value: str | bytes, reader: str
) -> None:
    bench.beat("r1")
    bench.client.hset(bench.keys.record("r1:e"), "hold", value)
    assert [member.figures.held for member in members(bench, "r1:e")] == [0]
    if reader == "heartbeat":
        assert bench.beat("r1").status is BeatStatus.OK
    else:
        assert bench.granted(ask("a", ("r1", 100))).figures[0].held == 0
    assert not bench.client.hexists(bench.keys.record("r1:e"), "hold")


@pytest.mark.parametrize("reader", ["heartbeat", "reserve"])
@pytest.mark.parametrize("value", [*GARBAGE, "{live} -5", "{live} 99999999999999999999", "{live} x", "{live}"])
def test_a_pending_entry_that_none_of_us_wrote_counts_as_dead_and_is_removed(
    bench: Bench, value: str | bytes, reader: str
) -> None:
    bench.beat("r1")
    bench.granted(ask("a", ("r1", 30)))
    live = f"{bench.now_ms + 1000:013d}"
    bench.client.hset(bench.keys.pending("r1:e"), "b", value.format(live=live) if isinstance(value, str) else value)
    assert [member.figures.pending for member in members(bench, "r1:e")] == [30]
    if reader == "heartbeat":
        assert bench.beat("r1").pending == 30
    else:
        assert bench.refused(ask("c", ("r1", 71))).figures[0].pending == 30
    assert bench.client.hkeys(bench.keys.pending("r1:e")) == [b"a"]


@pytest.mark.parametrize("value", ["garbage", "-1", "9" * 30])
def test_a_number_or_a_birth_that_none_of_us_wrote_does_not_outlive_the_next_beat(bench: Bench, value: str) -> None:
    bench.beat("r1")
    record = bench.keys.record("r1:e")
    bench.client.hset(record, mapping={"seq": value, "since": value})
    assert [member.since for member in members(bench, "r1:e")] == [0.0]
    bench.advance(1)
    assert bench.beat("r1").status is BeatStatus.OK
    assert [member.since for member in members(bench, "r1:e")] == [bench.now_ms / 1000]


@pytest.mark.parametrize("value", ["garbage", "9999999999999999999 1 r1:e", "{live} 99999999999999999999 r1:e"])
def test_an_answer_that_none_of_us_wrote_is_no_answer(bench: Bench, value: str) -> None:
    bench.beat("r1")
    bench.client.set(bench.keys.reservation("a"), value.format(live=bench.now_ms + 1000))
    assert not bench.granted(ask("a", "r1")).again


def test_fields_that_nobody_knows_and_records_of_others_keep_nobody_from_being_found(bench: Bench) -> None:
    for name in ("r1", "r2"):
        bench.beat(name)
    bench.client.hset(bench.keys.record("r1:e"), b"\xff", b"\xff")
    bench.client.hset(bench.keys.record("r2:e"), "name", "another")
    bench.client.hset(bench.keys.record("r3:e"), mapping={"at": 1})
    assert [member.key for member in members(bench, "r1:e", "r2:e", "r3:e")] == ["r1:e"]
    assert isinstance(bench.reserve(ask("a", "r1")), Granted)
