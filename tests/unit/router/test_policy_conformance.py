"""What every policy must do, whatever it prefers."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagemill_router.fleet.known_blocks import HeldBlocks, KnownBlocks
from pagemill_router.fleet.view import FleetSnapshot, ReplicaView, Standing
from pagemill_router.policies.base import Policy, RouteRequest, refusal
from pagemill_router.policies.registry import POLICIES, make_policy

ALL = sorted(POLICIES)


def chain(seed: int, length: int) -> tuple[bytes, ...]:
    return tuple(hashlib.sha256(f"{seed}/{i}".encode()).digest() for i in range(length))


def view(index: int, standing: Standing, capacity: int, committed: int, cached: tuple[bytes, ...]) -> ReplicaView:
    blocks, held = KnownBlocks(), HeldBlocks()
    blocks.apply(snapshot=True, stored=cached, removed=())
    held.hold(cached[:1])
    return ReplicaView(
        address=f"h:{index}",
        name=f"r{index}",
        epoch="e",
        model="m" if index % 5 else "other",
        standing=standing,
        capacity=capacity,
        committed=committed,
        cached=blocks,
        held=held,
    )


views = st.lists(
    st.tuples(
        st.sampled_from(list(Standing)),
        st.integers(0, 200),
        st.integers(0, 250),
        st.integers(0, 6).map(lambda n: chain(0, n)),
    ),
    max_size=8,
).map(lambda rows: tuple(view(i, *row) for i, row in enumerate(rows)))


@pytest.fixture(params=ALL)
def policy(request: pytest.FixtureRequest) -> Policy:
    return make_policy(request.param)


@given(
    replicas=views,
    blocks=st.integers(1, 150),
    length=st.integers(0, 8),
    ordinal=st.integers(0, 1000),
    seed=st.integers(0, 99),
    name=st.sampled_from(ALL),
)
def test_answers_a_permutation_of_the_eligible_best_first(
    replicas: tuple[ReplicaView, ...], blocks: int, length: int, ordinal: int, seed: int, name: str
) -> None:
    excluded = frozenset(one.key for one in replicas[:1])
    request = RouteRequest("m", blocks, hashes=chain(0, length), ordinal=ordinal, excluded=excluded)
    ranked = make_policy(name).pick(FleetSnapshot(replicas), request, random.Random(seed))
    eligible = [one.key for one in replicas if not refusal(one, request)]
    assert sorted(one.replica.key for one in ranked) == sorted(eligible)
    assert [one.cost for one in ranked] == sorted(one.cost for one in ranked)
    for one in ranked:
        assert one.replica.ready
        assert one.replica.serves("m")
        assert 1 <= one.need <= blocks <= one.replica.capacity
        assert one.reason


def test_says_nothing_of_an_empty_fleet(policy: Policy) -> None:
    assert policy.pick(FleetSnapshot(), RouteRequest("m", 1), random.Random(0)) == []


def test_the_same_inputs_give_the_same_answer(policy: Policy) -> None:
    fleet = FleetSnapshot(tuple(view(i, Standing.READY, 100, 10, ()) for i in range(1, 5)))
    request = RouteRequest("m", 5, hashes=chain(3, 4), ordinal=9)
    picks = [[one.replica.name for one in policy.pick(fleet, request, random.Random(5))] for _ in range(2)]
    assert picks[0] == picks[1]


def test_a_burst_over_equal_replicas_spreads(policy: Policy) -> None:
    """All see one snapshot: nothing but the ordinal, the prompt and the dice tells them apart."""
    names = [1, 2, 3, 4]
    fleet = FleetSnapshot(tuple(view(i, Standing.READY, 10_000, 0, ()) for i in names))
    first = Counter(
        policy.pick(fleet, RouteRequest("m", 5, hashes=chain(i, 6), ordinal=i), random.Random(i))[0].replica.name
        for i in range(400)
    )
    assert len(first) == len(names)
    assert max(first.values()) <= 1.7 * 400 / len(names)


def test_a_tie_without_a_prompt_to_tell_is_broken_by_the_dice(policy: Policy) -> None:
    fleet = FleetSnapshot(tuple(view(i, Standing.READY, 10_000, 0, ()) for i in (1, 2, 3, 4)))
    first = {policy.pick(fleet, RouteRequest("m", 5, ordinal=i), random.Random(i))[0].replica.name for i in range(100)}
    assert len(first) == 4


def test_held_blocks_lower_the_need_and_idle_ones_do_not(policy: Policy) -> None:
    hashes = chain(1, 4)
    cached_only = view(1, Standing.READY, 100, 0, hashes)
    cached_only = replace(cached_only, held=HeldBlocks())
    held = HeldBlocks()
    held.hold(hashes[:3])
    holding = replace(view(2, Standing.READY, 100, 0, hashes), held=held)
    ranked = policy.pick(FleetSnapshot((cached_only, holding)), RouteRequest("m", 10, hashes=hashes), random.Random(1))
    assert {one.replica.name: (one.need, one.hit_blocks) for one in ranked} == {"r1": (10, 4), "r2": (7, 4)}
