"""Need, figures, settings, names and errors: the pure parts of admission."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis import exceptions as redis_errors

from pagemill_common.capacity import (
    Candidate,
    CapacitySettings,
    Figures,
    Reserve,
    Standing,
    UnavailableReason,
    replica_key,
)
from pagemill_common.capacity.clock import RedisClock
from pagemill_common.capacity.errors import reason_of
from pagemill_common.capacity.figures import DEFAULT_RETRY, MAX_RETRY, MIN_RETRY, local_room, redis_trusted, retry_after
from pagemill_common.capacity.keys import Keys
from pagemill_common.capacity.need import FullMaxTokens, RunningQuantile, need_blocks
from pagemill_common.capacity.scripts import ScriptSet, read_lua


@pytest.mark.parametrize(
    ("prompt", "output", "hits", "need"),
    [(16, 16, 0, 2), (16, 17, 0, 3), (15, 1, 0, 1), (17, 0, 0, 2), (1, 0, 0, 1), (160, 16, 4, 7), (32, 1, 9, 1)],
)
def test_need_is_what_prompt_and_output_fill_less_held_hits(prompt: int, output: int, hits: int, need: int) -> None:
    assert need_blocks(prompt, output, 16, hits) == need


def test_full_max_tokens_learns_nothing() -> None:
    policy = FullMaxTokens()
    policy.observe("m", "t", 3)
    assert policy.expect("m", "t", 500) == 500


def test_a_quantile_is_used_once_enough_answers_are_known() -> None:
    policy = RunningQuantile(0.9, window=100, min_samples=10)
    for length in range(1, 10):
        policy.observe("m", "t", length)
    assert policy.expect("m", "t", 500) == 500
    policy.observe("m", "t", 10)
    assert policy.expect("m", "t", 500) == 9
    assert policy.expect("m", "t", 4) == 4
    assert policy.expect("m", "another", 500) == 500
    assert policy.expect("another", "t", 500) == 500


@given(st.lists(st.integers(0, 50), min_size=1, max_size=80), st.sampled_from([0.1, 0.5, 0.9, 1.0]))
def test_the_quantile_covers_its_share_of_the_window_and_no_smaller_length_does(lengths: list[int], q: float) -> None:
    policy = RunningQuantile(q, window=20, min_samples=1)
    for length in lengths:
        policy.observe("m", "t", length)
    window = lengths[-20:]
    expected = policy.expect("m", "t", 1000)
    assert sum(length <= expected for length in window) >= q * len(window)
    assert expected == 1 or sum(length < expected for length in window) < q * len(window)


def test_memory_of_lengths_is_bounded() -> None:
    policy = RunningQuantile(0.5, window=2, min_samples=1, max_keys=3)
    for tenant in ("a", "b", "c", "a", "d"):
        policy.observe("m", tenant, 7)
    assert policy.expect("m", "b", 100) == 100
    assert policy.expect("m", "a", 100) == 7


def figures(name: str, **values: Any) -> Figures:
    return Figures(**({"replica": f"{name}:e", "standing": Standing.READY, "capacity": 100, "block_size": 16} | values))


def request(need: int, *names: str) -> Reserve:
    return Reserve("a", tuple(Candidate(f"{n}:e", need) for n in names))


def test_the_hint_is_the_shortest_wait_for_the_missing_blocks() -> None:
    # 10 blocks of 16 tokens are missing: 160 tokens at 100 a second against 320.
    known = [
        figures("r1", committed=100, tokens_per_second=100.0),
        figures("r2", committed=100, tokens_per_second=320.0),
    ]
    assert retry_after(request(10, "r1", "r2"), known) == pytest.approx(0.5)
    assert retry_after(request(10, "r1"), known) == pytest.approx(1.6)


def test_held_blocks_count_as_missing() -> None:
    known = [figures("r1", committed=100, held=10, tokens_per_second=160.0)]
    assert retry_after(request(10, "r1"), known) == pytest.approx(2.0)


def test_the_hint_stays_within_its_limits() -> None:
    assert retry_after(request(10, "r1"), [figures("r1", committed=91, tokens_per_second=1e6)]) == MIN_RETRY
    assert retry_after(request(10, "r1"), [figures("r1", committed=100, tokens_per_second=0.1)]) == MAX_RETRY
    assert retry_after(request(10, "r1"), [figures("r1", committed=100)]) == DEFAULT_RETRY
    assert retry_after(request(101, "r1"), [figures("r1", tokens_per_second=9.0)]) == DEFAULT_RETRY
    assert retry_after(request(1, "r1"), [figures("r1", standing=Standing.STALE)]) == DEFAULT_RETRY
    assert retry_after(request(1, "r1"), []) == DEFAULT_RETRY


@pytest.mark.parametrize(
    ("watched", "fresh", "trusted"),
    [
        ("", "", True),
        ("", "a", True),
        ("a", "a", True),
        ("a", "", False),
        ("ab", "a", True),
        ("abc", "a", False),
        ("abc", "xyz", False),
    ],
)
def test_redis_is_trusted_while_half_of_the_watched_are_fresh(watched: str, fresh: str, trusted: bool) -> None:
    assert redis_trusted(watched, fresh) is trusted


@pytest.mark.parametrize(
    ("committed", "routers", "sends", "room"),
    [(0, 1, 0, 80), (50, 1, 0, 40), (50, 2, 0, 20), (50, 2, 15, 5), (50, 2, 25, 0), (120, 1, 0, 0), (0, 0, 0, 80)],
)
def test_local_room_is_a_share_of_what_is_free(committed: int, routers: int, sends: int, room: int) -> None:
    assert local_room(100, committed, routers, sends) == room


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"ttl": 0}, "ttl"),
        ({"ttl": 11}, "ttl"),
        ({"hold_ttl": 11}, "hold_ttl"),
        ({"stale_after": 2.6}, "stale_after"),
        ({"record_ttl": 2}, "record_ttl"),
        ({"connections": 0}, "connections"),
        ({"cost_band": -1}, "cost_band"),
        ({"ceilings": ((0, 1.1),)}, "ceilings"),
        ({"reap_limit": 5000}, "reap_limit"),
    ],
)
def test_a_wrong_setting_is_named(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ValueError, match=f"^{field} "):
        CapacitySettings(**changes)


def test_ceilings_go_by_the_class_that_a_priority_reaches() -> None:
    settings = CapacitySettings(ceilings=((10, 1.0), (0, 0.8), (-10, 0.5)))
    assert [settings.ceiling(p) for p in (-99, -10, -1, 0, 9, 10, 99)] == [0.5, 0.5, 0.5, 0.8, 0.8, 1.0, 1.0]
    assert CapacitySettings().ceiling(-5) == 1.0


@pytest.mark.parametrize("name", ["", "a:b", "a{b}", "a b", "é", "x" * 129])
def test_names_that_could_meet_in_one_key_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="must be 1 to 128"):
        replica_key(name, "e")
    with pytest.raises(ValueError, match="must be 1 to 128"):
        replica_key("n", name)
    with pytest.raises(ValueError, match="pool"):
        Keys(name)


def test_all_keys_of_a_pool_carry_its_hash_tag() -> None:
    keys = Keys("p")
    for key in (keys.facts, keys.roster, keys.record("a:b"), keys.pending("a:b"), keys.reservation("x{y}")):
        assert key[key.index("{") : key.index("}") + 1] == "{p}"


@pytest.mark.parametrize(
    "make",
    [
        lambda: Candidate("nocolon", 1),
        lambda: Candidate("a:e", 0),
        lambda: Candidate("a:e", 1, float("nan")),
        lambda: Reserve("", (Candidate("a:e", 1),)),
        lambda: Reserve("with space", (Candidate("a:e", 1),)),
        lambda: Reserve("x" * 129, (Candidate("a:e", 1),)),
        lambda: Reserve("a", ()),
        lambda: Reserve("a", (Candidate("a:e", 1), Candidate("a:e", 2))),
        lambda: Reserve("a", (Candidate("a:e", 1),), priority=2**31),
        lambda: Reserve("a", (Candidate("a:e", 1),), band=-1.0),
        lambda: Reserve("a", (Candidate("a:e", 1),), hold="a\nb"),
    ],
)
def test_requests_that_no_script_could_take_are_refused(make: Any) -> None:
    with pytest.raises(ValueError, match="must"):
        make()


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (redis_errors.BusyLoadingError("Redis is loading the dataset in memory"), UnavailableReason.LOADING),
        (redis_errors.ResponseError("LOADING Redis is loading"), UnavailableReason.LOADING),
        (redis_errors.ReadOnlyError("You can't write against a read only replica."), UnavailableReason.READONLY),
        (
            redis_errors.ResponseError("READONLY No writes. script: abc, on @user_script:1."),
            UnavailableReason.READONLY,
        ),
        (redis_errors.ResponseError("NOREPLICAS Not enough good replicas to write."), UnavailableReason.READONLY),
        (redis_errors.ResponseError("MISCONF Errors writing to the AOF file"), UnavailableReason.READONLY),
        (redis_errors.ClusterDownError("CLUSTERDOWN The cluster is down"), UnavailableReason.CLUSTERDOWN),
        (redis_errors.MasterDownError("MASTERDOWN Link with MASTER is down"), UnavailableReason.CLUSTERDOWN),
        (redis_errors.ResponseError("BUSY Redis is busy running a script"), UnavailableReason.BUSY),
        (redis_errors.OutOfMemoryError("OOM command not allowed"), UnavailableReason.OOM),
        (redis_errors.MovedError("3999 127.0.0.1:6381"), UnavailableReason.MOVED),
        (redis_errors.AuthenticationError("WRONGPASS"), UnavailableReason.ACCESS),
        (redis_errors.TimeoutError("Timeout reading from socket"), UnavailableReason.TIMEOUT),
        (TimeoutError(), UnavailableReason.TIMEOUT),
        (redis_errors.MaxConnectionsError("Too many connections"), UnavailableReason.TIMEOUT),
        (redis_errors.ConnectionError("Connection refused"), UnavailableReason.CONNECTION),
        (ConnectionResetError(), UnavailableReason.CONNECTION),
        (redis_errors.ResponseError("ERR something else"), UnavailableReason.OTHER),
    ],
)
def test_each_way_to_be_gone_has_its_reason(error: Exception, reason: UnavailableReason) -> None:
    assert reason_of(error) is reason


def test_the_clock_is_the_last_reply_plus_monotonic_time() -> None:
    now = [5.0]
    clock = RedisClock(lambda: now[0])
    assert clock.now_ms() is None
    clock.update(1_000_000)
    now[0] = 7.5
    assert clock.now_ms() == 1_002_500
    clock.update(400_000)
    assert clock.now_ms() == 400_000


def test_what_ships_reads_the_time_of_the_server_and_nothing_else() -> None:
    scripts = ScriptSet()
    clock = read_lua("clock")
    assert "redis.call('TIME')" in clock
    for script in (scripts.heartbeat, scripts.reserve, scripts.release):
        assert script.text.startswith(clock)
        assert script.text.count("function now_ms") == 1
        assert script.text.count("'TIME'") == 1
