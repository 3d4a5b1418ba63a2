"""Each guard of the scripts: that it holds, and that its scenario notices when the guard is deleted from the Lua."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from integration.capacity.bench import Bench, ask

from pagemill_common.capacity import BeatStatus, Granted, RefusedReason, Standing

pytestmark = pytest.mark.redis


@dataclass(frozen=True)
class Guard:
    scenario: Callable[[Bench], None]
    script: str
    text: str
    """What the guard is in the Lua."""
    without: str
    """What is left when it is deleted."""


GUARDS: dict[str, Guard] = {}


def guard(script: str, text: str, without: str) -> Callable[[Callable[[Bench], None]], Callable[[Bench], None]]:
    def register(scenario: Callable[[Bench], None]) -> Callable[[Bench], None]:
        GUARDS[scenario.__name__] = Guard(scenario, script, text, without)
        return scenario

    return register


# Heartbeat.


@guard("heartbeat", "head.seq <= stored", "false")
def an_older_beat_never_overwrites_a_newer_one(bench: Bench) -> None:
    bench.beat(seq=2, committed=70)
    assert bench.beat(seq=1, committed=0).status is BeatStatus.OLD
    assert bench.refused(ask("a", ("r1", 40))).figures[0].committed == 70


@guard("heartbeat", "head.seq <= stored", "head.seq < stored")
def a_beat_that_arrives_twice_is_written_once_and_acknowledged(bench: Bench) -> None:
    assert bench.beat(seq=1).status is BeatStatus.OK
    bench.advance(5)
    again = bench.beat(seq=1)
    assert again.status is BeatStatus.OLD
    assert again.acknowledged
    assert bench.reserve(ask("a", "r1")).figures[0].age == 5


@guard("heartbeat", "if is_late(head.not_after, now, head.max_ttl)", "if false")
def a_beat_that_arrives_late_writes_nothing(bench: Bench) -> None:
    assert bench.beat(not_after_s=-1).status is BeatStatus.LATE
    assert bench.refused(ask("a", "r1")).figures[0].standing is Standing.UNKNOWN


@guard("heartbeat", "facts[1] and tonumber(facts[1]) ~= head.block_size", "false")
def a_replica_of_another_block_size_is_refused(bench: Bench) -> None:
    bench.beat("r1", block_size=16)
    reply = bench.beat("r2", block_size=32)
    assert reply.status is BeatStatus.REFUSED
    assert not reply.acknowledged
    assert reply.message == "the pool has block_size 16, this replica has 32"
    assert bench.refused(ask("a", "r2")).figures[0].standing is Standing.UNKNOWN


@guard("heartbeat", "facts[2] and facts[2] ~= head.model_id", "false")
def a_replica_of_another_model_is_refused(bench: Bench) -> None:
    bench.beat("r1", model_id="one")
    reply = bench.beat("r2", model_id="two")
    assert reply.status is BeatStatus.REFUSED
    assert reply.message == "the pool has model_id one, this replica has two"


@guard("heartbeat", "redis.call('HDEL', KEYS[4], id)", "")
def seen_reservations_leave_pending_in_the_step_that_commits_them(bench: Bench) -> None:
    bench.beat()
    bench.granted(ask("a", ("r1", 30)))
    bench.granted(ask("b", ("r1", 20)))
    assert bench.beat(committed=30, seen=("a",)).pending == 20
    figures = bench.reserve(ask("c", "r1")).figures[0]
    assert (figures.committed, figures.pending) == (30, 20 + 10)


@guard("heartbeat", "redis.call('SET', KEYS[4 + i], TOMBSTONE, 'PX', head.tombstone_ttl)", "")
def an_id_that_a_replica_has_seen_is_never_reserved_again(bench: Bench) -> None:
    bench.beat("r1")
    bench.beat("r2")
    bench.granted(ask("a", "r1"))
    bench.beat("r1", committed=10, seen=("a",))
    reply = bench.refused(ask("a", "r1", "r2"))
    assert reply.reason is RefusedReason.SEEN
    assert [f.pending for f in reply.figures] == [0, 0]


@guard("heartbeat", "'PX', head.tombstone_ttl", "'PX', head.tombstone_ttl / 2")
def tombstones_last_twice_the_ttl(bench: Bench) -> None:
    bench.beat(seen=("a",))
    left = bench.client.pttl(bench.keys.reservation("a"))
    assert 2 * bench.settings.ttl - 30 < left / 1000 <= 2 * bench.settings.ttl


@guard("heartbeat", "redis.call('PEXPIRE', KEYS[3], head.record_ttl)", "")
def records_vanish_by_themselves(bench: Bench) -> None:
    bench.beat()
    bench.granted(ask("a", "r1"))
    for key in bench.client.keys(f"pagemill:{{{bench.keys.pool}}}:*"):
        assert bench.client.pttl(key) > 0, key


@guard("reserve", "redis.call('PEXPIRE', fit.replica.pending_key, 2 * ask.max_ttl)", "")
def pending_of_a_replica_that_never_speaks_again_vanishes(bench: Bench) -> None:
    bench.beat()
    bench.granted(ask("a", "r1"))
    assert bench.client.pttl(bench.keys.pending("r1:e")) > 0


@guard("heartbeat", "redis.call('PEXPIRE', KEYS[1], head.record_ttl)", "")
def the_facts_of_a_pool_without_replicas_vanish(bench: Bench) -> None:
    bench.beat()
    assert bench.client.pttl(bench.keys.facts) > 0


@guard("heartbeat", "redis.call('PEXPIRE', KEYS[2], head.record_ttl)", "")
def the_roster_of_a_pool_without_replicas_vanishes(bench: Bench) -> None:
    bench.beat()
    assert bench.client.pttl(bench.keys.roster) > 0


@guard("heartbeat", "redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now - head.record_ttl)", "")
def replicas_that_are_gone_leave_the_roster(bench: Bench) -> None:
    bench.beat("r1")
    bench.advance(bench.settings.record_ttl + 1)
    bench.beat("r2")
    assert bench.client.zrange(bench.keys.roster, 0, -1) == [b"r2:e"]


@guard("heartbeat", "redis.call('ZREMRANGEBYSCORE', KEYS[2], '(' .. now, '+inf')", "")
def replicas_gone_before_the_clock_was_set_back_leave_the_roster(bench: Bench) -> None:
    bench.beat("r1")
    bench.advance(-600)
    bench.beat("r2")
    assert bench.client.zrange(bench.keys.roster, 0, -1) == [b"r2:e"]


# Who gets requests.


@guard("reserve", "or 'unknown'", "or 'ready'")
def unknown_replicas_get_nothing(bench: Bench) -> None:
    reply = bench.refused(ask("a", "r1"))
    assert reply.reason is RefusedReason.STALE
    assert reply.figures[0].standing is Standing.UNKNOWN


@guard("reserve", "now - at > ask.stale", "false")
def stale_replicas_get_nothing(bench: Bench) -> None:
    bench.beat()
    bench.advance(bench.settings.stale_after)
    bench.granted(ask("a", "r1"))
    bench.advance(0.001)
    reply = bench.refused(ask("b", "r1"))
    assert reply.reason is RefusedReason.STALE
    assert reply.figures[0].standing is Standing.STALE


@guard("reserve", "at > now or", "")
def a_heartbeat_from_the_future_is_stale(bench: Bench) -> None:
    bench.beat()
    bench.advance(-600)
    assert bench.refused(ask("a", "r1")).reason is RefusedReason.STALE


@guard("reserve", "if draining == '1' then", "if false then")
def draining_replicas_get_nothing(bench: Bench) -> None:
    bench.beat("r1", draining=True)
    assert bench.refused(ask("a", "r1")).reason is RefusedReason.DRAINING
    bench.beat("r2")
    assert bench.granted(ask("b", "r1", "r2")).replica == "r2:e"


@guard("reserve", "elseif figures.standing ~= 'draining' then", "else")
def all_draining_is_told_apart_from_all_stale(bench: Bench) -> None:
    bench.beat("r1", draining=True)
    assert bench.refused(ask("a", "r1")).reason is RefusedReason.DRAINING
    assert bench.refused(ask("b", "r1", "r2")).reason is RefusedReason.STALE


@guard("reserve", "return possible and 'full' or 'too_large'", "return 'full'")
def what_could_never_fit_is_told_apart_from_full(bench: Bench) -> None:
    bench.beat(committed=95)
    assert bench.refused(ask("a", ("r1", 100))).reason is RefusedReason.FULL
    assert bench.refused(ask("b", ("r1", 101))).reason is RefusedReason.TOO_LARGE


# Room.


@guard("reserve", "figures.committed + figures.pending + candidate[3]", "figures.pending + candidate[3]")
def committed_blocks_are_taken(bench: Bench) -> None:
    bench.beat(committed=91)
    assert bench.refused(ask("a", ("r1", 10))).reason is RefusedReason.FULL
    bench.granted(ask("b", ("r1", 9)))


@guard("reserve", "figures.committed + figures.pending + candidate[3]", "figures.committed + candidate[3]")
def reserved_blocks_are_taken(bench: Bench) -> None:
    bench.beat()
    bench.granted(ask("a", ("r1", 91)))
    assert bench.refused(ask("b", ("r1", 10))).reason is RefusedReason.FULL
    bench.granted(ask("c", ("r1", 9)))


@guard("reserve", "figures.pending = figures.pending + fit.need", "")
def members_of_one_batch_see_each_other(bench: Bench) -> None:
    bench.beat()
    replies = bench.reserve_all(*(ask(f"a{i}", ("r1", 40)) for i in range(3)))
    assert [isinstance(r, Granted) for r in replies] == [True, True, False]


@guard(
    "reserve",
    "redis.call('HSET', fit.replica.pending_key, member.id, entry_of(expires, fit.need))",
    "",
)
def a_grant_is_written(bench: Bench) -> None:
    bench.beat()
    bench.granted(ask("a", ("r1", 60)))
    assert bench.refused(ask("b", ("r1", 60))).reason is RefusedReason.FULL


@guard("reserve", "blocks * 1000 <= figures.capacity * member.ceiling", "blocks <= figures.capacity")
def a_priority_class_stays_below_its_ceiling(bench: Bench) -> None:
    bench.use(ceilings=((-100, 0.5), (0, 0.8), (10, 1.0)))
    bench.beat(committed=50)
    assert bench.refused(ask("low", ("r1", 1), priority=-1)).reason is RefusedReason.FULL
    bench.granted(ask("mid", ("r1", 30), priority=0))
    assert bench.refused(ask("mid2", ("r1", 1), priority=9)).reason is RefusedReason.FULL
    bench.granted(ask("high", ("r1", 20), priority=10))


@guard("common", "is_live(expiry, now, max_ttl) and whole(string.sub(entry, 15)", "whole(string.sub(entry, 15)")
def reservations_expire(bench: Bench) -> None:
    bench.beat()
    bench.granted(ask("a", ("r1", 100)))
    bench.advance(bench.settings.ttl)
    bench.beat()
    bench.granted(ask("b", ("r1", 100)))


@guard("common", "expiry > now and", "")
def a_reservation_lives_no_millisecond_longer(bench: Bench) -> None:
    bench.beat()
    bench.granted(ask("a", ("r1", 100)))
    bench.advance(bench.settings.ttl - 0.001)
    bench.beat()
    bench.refused(ask("b", ("r1", 100)))
    bench.advance(0.001)
    bench.beat()
    bench.granted(ask("c", ("r1", 100)))


@guard("common", "and expiry <= now + max_ttl", "")
def an_expiry_beyond_the_longest_ttl_is_expired(bench: Bench) -> None:
    bench.beat()
    bench.granted(ask("a", ("r1", 100)))
    bench.advance(-600)
    bench.beat()
    bench.granted(ask("b", ("r1", 100)))


@guard("common", "redis.call('HDEL', key, unpack(dead))", "")
def expired_entries_are_removed(bench: Bench) -> None:
    bench.beat()
    bench.granted(ask("a", "r1"))
    bench.advance(bench.settings.ttl)
    bench.beat()
    assert bench.client.hlen(bench.keys.pending("r1:e")) == 0


@guard("common", "#dead < limit and", "")
def few_expired_entries_are_removed_at_a_time_and_none_counts(bench: Bench) -> None:
    bench.use(reap_limit=8)
    bench.beat()
    for batch in range(2):
        bench.reserve_all(*(ask(f"a{batch}-{i}", ("r1", 1)) for i in range(10)))
    bench.advance(bench.settings.ttl)
    assert bench.beat().pending == 0
    assert bench.client.hlen(bench.keys.pending("r1:e")) == 12
    assert bench.granted(ask("b", ("r1", 100))).figures[0].pending == 100
    assert bench.client.hlen(bench.keys.pending("r1:e")) == 4 + 1


# The same call twice, and calls that come late.


@guard(
    "reserve",
    "redis.call('SET', reservation_key,",
    "local _ = select('#',",
)
def an_id_reserved_twice_is_one_reservation(bench: Bench) -> None:
    bench.beat("r1")
    bench.beat("r2")
    first = bench.granted(ask("a", "r1", "r2"))
    bench.advance(1)
    second = bench.granted(ask("a", "r1", "r2"))
    assert (second.replica, second.need, second.again) == (first.replica, first.need, True)
    assert second.expires_in == first.expires_in - 1
    assert sum(f.pending for f in second.figures) == first.need


@guard("reserve", "if is_late(ask.not_after, now, ask.max_ttl) then", "if false then")
def a_call_that_arrives_late_writes_nothing(bench: Bench) -> None:
    bench.beat()
    reply = bench.refused(ask("a", "r1"), not_after_s=-0.001)
    assert reply.reason is RefusedReason.LATE
    assert reply.figures[0].pending == 0
    bench.granted(ask("a", "r1"), not_after_s=0)


@guard("common", "not is_live(not_after + 1, now, max_ttl)", "now > not_after")
def a_call_sent_before_the_clock_was_set_back_writes_nothing(bench: Bench) -> None:
    bench.advance(-600)
    bench.beat()
    assert bench.refused(ask("a", "r1"), not_after_s=600).reason is RefusedReason.LATE


@guard("reserve", "expires and need and is_live(expires, now, ask.max_ttl)", "true")
def an_expired_reservation_is_not_answered_with_again(bench: Bench) -> None:
    bench.beat()
    bench.granted(ask("a", "r1"))
    bench.advance(bench.settings.ttl)
    bench.beat()
    reply = bench.granted(ask("a", "r1"))
    assert not reply.again
    assert reply.expires_in == bench.settings.ttl


@guard("release", "removed = removed + redis.call('HDEL', KEYS[i], ARGV[1])", "")
def a_release_gives_the_room_back(bench: Bench) -> None:
    bench.beat()
    bench.granted(ask("a", ("r1", 100)))
    assert bench.release("a", "r1:e")
    assert not bench.release("a", "r1:e")
    bench.granted(ask("b", ("r1", 100)))


@guard("release", "redis.call('SET', KEYS[1], TOMBSTONE, 'PX', ARGV[2])", "")
def a_reserve_that_arrives_after_its_release_writes_nothing(bench: Bench) -> None:
    bench.beat()
    bench.release("a", "r1:e")
    assert bench.refused(ask("a", "r1")).reason is RefusedReason.SEEN


# The choice.


@guard("reserve", "fit.cost <= cheapest + member.band and", "")
def the_cheapest_with_room_wins(bench: Bench) -> None:
    bench.beat("r1", committed=50)
    bench.beat("r2", committed=0)
    assert bench.granted(ask("a", ("r1", 10, 1.0), ("r2", 10, 1.1))).replica == "r1:e"
    assert bench.granted(ask("b", ("r1", 41, 1.0), ("r2", 41, 1.1))).replica == "r2:e"


@guard("reserve", "cheapest + member.band", "cheapest")
def within_the_band_the_emptiest_wins(bench: Bench) -> None:
    bench.beat("r1", committed=50)
    bench.beat("r2", committed=0)
    assert bench.granted(ask("a", ("r1", 10, 1.0), ("r2", 10, 1.1), band=0.2)).replica == "r2:e"


@guard("reserve", "load = blocks / figures.capacity", "load = blocks")
def emptiest_is_a_share_of_the_capacity(bench: Bench) -> None:
    bench.beat("r1", capacity=100, committed=50)
    bench.beat("r2", capacity=1000, committed=100)
    assert bench.granted(ask("a", "r1", "r2")).replica == "r2:e"


@guard("reserve", "need = candidate[3], load", "need = member.c[1][3], load")
def each_candidate_has_its_own_need(bench: Bench) -> None:
    bench.beat("r1", committed=60)
    bench.beat("r2", committed=60)
    reply = bench.granted(ask("a", ("r1", 50), ("r2", 20)))
    assert (reply.replica, reply.need) == ("r2:e", 20)


# Holds.


@guard("reserve", "member.priority <= hold.priority", "false")
def a_hold_keeps_equals_and_lower_ones_out(bench: Bench) -> None:
    bench.beat(committed=60)
    assert bench.refused(ask("big", ("r1", 80), hold="big", priority=1)).held_on == "r1:e"
    assert bench.refused(ask("low", ("r1", 1), priority=0)).figures[0].held == 80
    assert bench.refused(ask("equal", ("r1", 1), priority=1)).reason is RefusedReason.FULL
    bench.granted(ask("high", ("r1", 1), priority=2))


@guard("reserve", "hold.id ~= member.hold and", "")
def a_hold_does_not_keep_its_own_request_out(bench: Bench) -> None:
    bench.beat(committed=60)
    bench.refused(ask("big", ("r1", 80), hold="big"))
    bench.beat(committed=20)
    bench.granted(ask("big", ("r1", 80), hold="big"))


@guard("reserve", "    drop_hold(member)\n", "")
def a_grant_ends_the_hold(bench: Bench) -> None:
    bench.beat(committed=60)
    bench.refused(ask("big", ("r1", 50), hold="big"))
    bench.beat(committed=20)
    assert bench.granted(ask("big", ("r1", 50), hold="big")).figures[0].held == 0
    bench.granted(ask("next", ("r1", 30)))


@guard("common", "and need and is_live(expiry, now, max_ttl)", "and need")
def a_hold_that_is_not_renewed_ends(bench: Bench) -> None:
    bench.beat(committed=60)
    bench.refused(ask("big", ("r1", 80), hold="big"))
    bench.advance(bench.settings.hold_ttl)
    bench.beat(committed=60)
    bench.granted(ask("small", ("r1", 1)))


@guard("reserve", "replica.hold.priority < member.priority", "true")
def only_a_higher_one_replaces_a_hold(bench: Bench) -> None:
    bench.beat(committed=60)
    bench.refused(ask("first", ("r1", 80), hold="first", priority=1))
    assert bench.refused(ask("equal", ("r1", 50), hold="equal", priority=1)).held_on == ""
    reply = bench.refused(ask("high", ("r1", 70), hold="high", priority=2))
    assert (reply.held_on, reply.figures[0].held) == ("r1:e", 70)


@guard(
    "reserve",
    "if replica.hold and replica.hold.id == member.hold then\n        return",
    "if false then\n        return",
)
def a_renewed_hold_stays_where_it_is(bench: Bench) -> None:
    bench.beat("r1", committed=60)
    bench.beat("r2", committed=70)
    assert bench.refused(ask("big", ("r1", 50), ("r2", 50), hold="big")).held_on == "r1:e"
    bench.beat("r1", committed=80)
    reply = bench.refused(ask("big", ("r1", 50), ("r2", 50), hold="big"))
    assert reply.held_on == "r1:e"
    assert [f.held for f in reply.figures] == [50, 0]


@guard(
    "reserve",
    "figures.standing == 'ready' and below_ceiling(need, figures, member)",
    "below_ceiling(need, figures, member)",
)
def nothing_is_held_on_a_replica_that_takes_nothing(bench: Bench) -> None:
    bench.beat("r1", draining=True)
    bench.beat("r2", committed=95)
    assert bench.refused(ask("a", "r1", "r2", hold="a")).held_on == "r2:e"


@guard("reserve", "and below_ceiling(need, figures, member)", "")
def nothing_is_held_for_what_could_never_fit(bench: Bench) -> None:
    bench.beat()
    assert bench.refused(ask("a", ("r1", 101), hold="a")).held_on == ""


@pytest.mark.parametrize("name", GUARDS)
def test_guard_holds(bench: Bench, name: str) -> None:
    GUARDS[name].scenario(bench)


@pytest.mark.parametrize("name", GUARDS)
def test_without_the_guard_its_scenario_fails(bench: Bench, name: str) -> None:
    found = GUARDS[name]
    for script in ("heartbeat", "reserve", "release") if found.script == "common" else (found.script,):
        bench.edit(script, found.text, found.without)
    with pytest.raises(AssertionError):
        found.scenario(bench)


def test_reservations_of_an_old_epoch_are_never_charged_to_the_new(bench: Bench) -> None:
    bench.beat("r1", epoch="old")
    bench.granted(ask("a", ("r1:old", 90)))
    bench.beat("r1", epoch="new")
    assert bench.granted(ask("b", ("r1:new", 90))).figures[0].pending == 90
    assert bench.refused(ask("c", ("r1:other", 1))).figures[0].standing is Standing.UNKNOWN


def test_holds_survive_heartbeats(bench: Bench) -> None:
    bench.beat(committed=60)
    bench.refused(ask("big", ("r1", 80), hold="big"))
    bench.beat(committed=50)
    assert bench.refused(ask("small", ("r1", 1))).figures[0].held == 80


def test_equal_candidates_share_a_batch(bench: Bench) -> None:
    for name in ("r1", "r2", "r3", "r4"):
        bench.beat(name, capacity=1000)
    replies = bench.reserve_all(*(ask(f"a{i}", "r1", "r2", "r3", "r4") for i in range(32)))
    assert sorted(r.replica for r in replies if isinstance(r, Granted)) == sorted(["r1:e", "r2:e", "r3:e", "r4:e"] * 8)
