"""Blocks: who holds them, in which order they are reused, which prefix they still hold."""

from __future__ import annotations

import pytest

from pagemill_replica.engine.block_pool import AccountingError, BlockPool
from pagemill_replica.engine.chain import Link, same_prefix

ROOT = Link(b"root", None, b"")


def chain(*blocks: tuple[int, ...], root: Link = ROOT) -> list[Link]:
    links: list[Link] = []
    for tokens in blocks:
        parent = links[-1] if links else root
        links.append(Link(parent.hash + repr(tokens).encode(), parent, tokens))
    return links


def cached(pool: BlockPool, links: list[Link]) -> list[int]:
    """A computed and freed chain."""
    blocks = pool.allocate(len(links))
    for block, link in zip(blocks, links, strict=True):
        pool.register(block, link)
    pool.release(blocks)
    return blocks


def test_a_pool_needs_a_block() -> None:
    with pytest.raises(ValueError, match="at least one block"):
        BlockPool(0)


def test_blocks_are_given_once_and_come_back() -> None:
    pool = BlockPool(3)
    taken = pool.allocate(3)
    assert sorted(taken) == [0, 1, 2]
    assert (pool.free_count, pool.used_count) == (0, 3)
    pool.check(dict.fromkeys(taken, 1))
    pool.release(taken)
    assert pool.free_count == 3
    pool.check({})


def test_too_large_a_wish_takes_nothing() -> None:
    pool = BlockPool(3)
    pool.allocate(2)
    with pytest.raises(IndexError, match="2 blocks asked for, 1 idle"):
        pool.allocate(2)
    assert pool.free_count == 1


def test_freeing_twice_is_an_error() -> None:
    pool = BlockPool(2)
    taken = pool.allocate(1)
    pool.release(taken)
    with pytest.raises(AccountingError, match="freed twice"):
        pool.release(taken)


def test_idle_blocks_keep_their_prefix_until_they_are_reused() -> None:
    pool = BlockPool(2)
    links = chain((1, 2), (3, 4))
    blocks = cached(pool, links)
    assert pool.idle_cached_count == 2
    found = pool.find(links[1])
    assert found is not None
    assert found.id == blocks[1]
    pool.allocate(2)
    assert pool.find(links[0]) is None
    assert pool.idle_cached_count == 0


def test_the_tail_of_a_chain_is_reused_before_its_head() -> None:
    pool = BlockPool(3)
    links = chain((1,), (2,), (3,))
    blocks = cached(pool, links)
    assert [pool.allocate(1)[0] for _ in range(3)] == blocks[::-1]


def test_the_least_recently_used_prefix_goes_first_and_empty_blocks_before_any() -> None:
    pool = BlockPool(4)
    old, young = chain((1,)), chain((2,))
    (old_block,) = cached(pool, old)
    (young_block,) = cached(pool, young)
    # Using the old one makes it the younger.
    hit = pool.find(old[0])
    assert hit is not None
    pool.acquire(hit)
    pool.release([hit.id])
    assert old_block not in (first_two := pool.allocate(2))
    assert young_block not in first_two
    assert pool.allocate(2) == [young_block, old_block]


def test_a_shared_block_is_idle_only_when_its_last_holder_lets_go() -> None:
    pool = BlockPool(1)
    link = chain((1,))[0]
    blocks = pool.allocate(1)
    pool.register(blocks[0], link)
    hit = pool.find(link)
    assert hit is not None
    pool.acquire(hit)
    pool.check({blocks[0]: 2})
    pool.release(blocks)
    assert pool.free_count == 0
    pool.release(blocks)
    assert pool.free_count == 1


def test_a_second_block_with_the_same_prefix_stays_unnamed() -> None:
    pool = BlockPool(2)
    first, second = pool.allocate(2)
    link, equal = chain((1,))[0], chain((1,))[0]
    assert pool.register(first, link) is link
    assert pool.register(second, equal) is link
    pool.release([first])
    pool.release([second])
    assert pool.idle_cached_count == 1
    assert pool.allocate(1) == [second]


@pytest.mark.parametrize(
    ("content", "parent"),
    [
        pytest.param((9,), ROOT, id="other tokens"),
        pytest.param((1,), Link(b"root", None, b"salt"), id="other salt"),
        pytest.param((1,), Link(b"root", ROOT, (0,)), id="other parent of the same name"),
    ],
)
def test_a_collision_is_a_miss_and_takes_no_name(content: tuple[int, ...], parent: Link) -> None:
    pool = BlockPool(2)
    stored = Link(b"same", ROOT, (1,))
    other = Link(b"same", parent, content)
    first, second = pool.allocate(2)
    pool.register(first, stored)
    assert pool.find(other) is None
    assert pool.register(second, other) is other
    assert pool.find(other) is None
    found = pool.find(stored)
    assert found is not None
    assert found.id == first
    pool.check({first: 1, second: 1})


def test_equal_chains_made_apart_are_the_same_prefix() -> None:
    a = chain((1,), (2,), (3,))
    b = chain((1,), (2,), (3,), root=Link(b"root", None, b""))
    assert same_prefix(a[2], b[2])
    assert not same_prefix(a[2], b[1])
    assert not same_prefix(a[0], chain((2,))[0])


def test_events_are_net_of_what_came_and_went_between_two_looks() -> None:
    pool = BlockPool(1)
    one, two = chain((1,))[0], chain((2,))[0]
    cached(pool, [one])
    assert pool.take_events() == ([one.hash], [])
    cached(pool, [two])
    cached(pool, [one])
    assert pool.take_events() == ([], [])
    cached(pool, [two])
    assert pool.take_events() == ([two.hash], [one.hash])
    assert pool.take_events() == ([], [])


def test_the_check_finds_a_leak_and_a_stranger() -> None:
    pool = BlockPool(2)
    (block,) = pool.allocate(1)
    with pytest.raises(AccountingError, match=f"block {block} counts 1 references and has 0"):
        pool.check({})
    with pytest.raises(AccountingError, match="has 2"):
        pool.check({block: 2})
