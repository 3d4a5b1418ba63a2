"""What each policy prefers."""

from __future__ import annotations

import hashlib
import random

import pytest

from pagemill_router.fleet.known_blocks import KnownBlocks
from pagemill_router.fleet.view import FleetSnapshot, ReplicaView, Standing
from pagemill_router.policies.base import RouteRequest
from pagemill_router.policies.registry import make_policy
from pagemill_router.policies.ring import Ring

PROMPT = tuple(hashlib.sha256(bytes([i])).digest() for i in range(10))


def view(name: str, committed: int = 0, cached: tuple[bytes, ...] = (), capacity: int = 1000) -> ReplicaView:
    blocks = KnownBlocks()
    blocks.apply(snapshot=True, stored=cached, removed=())
    return ReplicaView(
        address=name,
        name=name,
        epoch="e",
        model="m",
        standing=Standing.READY,
        capacity=capacity,
        committed=committed,
        cached=blocks,
    )


def first(policy: str, fleet: tuple[ReplicaView, ...], request: RouteRequest, seed: int = 0) -> str:
    return make_policy(policy).pick(FleetSnapshot(fleet), request, random.Random(seed))[0].replica.name


def test_round_robin_takes_turns_by_ordinal() -> None:
    fleet = (view("c"), view("a"), view("b"))
    assert [first("round_robin", fleet, RouteRequest("m", 1, ordinal=i)) for i in range(6)] == list("abcabc")


def test_least_loaded_counts_shares_not_blocks() -> None:
    fleet = (view("small", committed=60, capacity=100), view("large", committed=300, capacity=1000))
    assert {first("least_loaded", fleet, RouteRequest("m", 1), seed) for seed in range(20)} == {"large"}


def test_power_of_two_never_takes_the_fuller_of_its_pair_and_so_never_the_fullest() -> None:
    fleet = (view("full", committed=900), view("half", committed=500), view("empty"))
    firsts = {first("power_of_two", fleet, RouteRequest("m", 1), seed) for seed in range(50)}
    assert firsts == {"half", "empty"}


class TestPrefixAffinity:
    def test_goes_where_the_prefix_is_cached(self) -> None:
        fleet = (view("a"), view("b", cached=PROMPT), view("c"))
        assert {first("prefix_affinity", fleet, RouteRequest("m", 12, hashes=PROMPT), s) for s in range(20)} == {"b"}

    def test_a_prefix_nobody_has_goes_to_one_place(self) -> None:
        fleet = tuple(view(name) for name in "abcd")
        assert len({first("prefix_affinity", fleet, RouteRequest("m", 12, hashes=PROMPT), s) for s in range(20)}) == 1

    def test_tolerates_some_imbalance_for_a_hit(self) -> None:
        fleet = (view("a", committed=100), view("b", committed=250, cached=PROMPT))
        assert first("prefix_affinity", fleet, RouteRequest("m", 12, hashes=PROMPT)) == "b"

    def test_leaves_a_cached_prefix_on_an_overloaded_replica(self) -> None:
        fleet = (view("a", committed=50), view("b", committed=950, cached=PROMPT))
        assert first("prefix_affinity", fleet, RouteRequest("m", 12, hashes=PROMPT)) == "a"

    def test_affinity_among_the_balanced_outlives_one_overloaded_replica(self) -> None:
        fleet = (view("a", 100), view("b", 100, cached=PROMPT), view("c", 950, cached=PROMPT))
        assert first("prefix_affinity", fleet, RouteRequest("m", 12, hashes=PROMPT)) == "b"

    def test_without_a_full_block_the_emptiest_wins(self) -> None:
        fleet = (view("a", 300), view("b", 10), view("c", 200))
        assert first("prefix_affinity", fleet, RouteRequest("m", 1)) == "b"

    def test_a_hit_counts_only_from_the_start(self) -> None:
        fleet = (view("tail", cached=PROMPT[5:]), view("head", cached=PROMPT[:5]))
        assert first("prefix_affinity", fleet, RouteRequest("m", 12, hashes=PROMPT)) == "head"


class TestRing:
    def test_walks_every_member_once(self) -> None:
        members = tuple("abcdef")
        assert sorted(Ring(members).walk(b"key")) == list(members)

    def test_a_member_that_leaves_moves_only_its_own_keys(self) -> None:
        keys = [str(i).encode() for i in range(500)]
        before = {key: next(Ring(tuple("abcd")).walk(key)) for key in keys}
        after = {key: next(Ring(tuple("abd")).walk(key)) for key in keys}
        assert all(after[key] == owner for key, owner in before.items() if owner != "c")

    def test_shares_are_near_even(self) -> None:
        ring = Ring(tuple("abcd"))
        owners = [next(ring.walk(str(i).encode())) for i in range(4000)]
        assert all(0.6 * 1000 < owners.count(name) < 1.4 * 1000 for name in "abcd")


def test_an_unknown_policy_names_the_known() -> None:
    with pytest.raises(ValueError, match="round_robin"):
        make_policy("best")
