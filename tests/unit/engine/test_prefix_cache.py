"""What is found in the prefix cache, and that finding it never changes an answer."""

from __future__ import annotations

from typing import Any

import pytest

B = 4
LENGTHS = (1, B - 1, B, B + 1, 2 * B - 1, 2 * B, 2 * B + 1)


def prompt(length: int, start: int = 1) -> list[int]:
    return [(start + i) % 64 for i in range(length)]


@pytest.mark.parametrize("length", LENGTHS)
def test_a_full_hit_leaves_the_last_token_to_compute(harness: Any, length: int) -> None:
    engine = harness(block_size=B)
    first = engine.submit(prompt(length))
    engine.run()
    second = engine.submit(prompt(length))
    engine.run()
    assert engine.requests[first].cached == 0
    assert engine.requests[second].cached == (length - 1) // B * B


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("output", [B - 1, B, B + 1, 2 * B])
def test_output_is_cached_too_for_the_next_turn(harness: Any, length: int, output: int) -> None:
    engine = harness(block_size=B)
    first = engine.submit(prompt(length), output)
    engine.run()
    answer = engine.requests[first].tokens
    turn = engine.submit([*prompt(length), *answer, 5, 6], 2)
    engine.run()
    # The last token drawn was never computed, so its block is full only without it.
    assert engine.requests[turn].cached == (length + output - 1) // B * B


def test_a_prefix_is_shared_while_both_run(harness: Any) -> None:
    engine = harness(block_size=B, blocks=8)
    engine.submit(prompt(8), 8)
    engine.step()
    second = engine.submit(prompt(8), 8)
    engine.step()
    assert engine.requests[second].cached == 4
    assert sum(engine.held.values()) - engine.reports[-1].stats.used_blocks == 1
    engine.run()


def test_two_that_start_together_compute_the_same_prefix_and_one_keeps_the_name(harness: Any) -> None:
    engine = harness(block_size=B)
    engine.submit(prompt(8), 2)
    engine.submit(prompt(8), 2)
    engine.run()
    assert len(engine.cache) == 2


def test_another_salt_finds_nothing(harness: Any) -> None:
    engine = harness(block_size=B)
    engine.submit(prompt(12), salt=b"one")
    engine.run()
    other = engine.submit(prompt(12), salt=b"two")
    same = engine.submit(prompt(12), salt=b"one")
    engine.run()
    assert engine.requests[other].cached == 0
    assert engine.requests[same].cached == 8


def test_a_prefix_that_was_reused_is_computed_again(harness: Any) -> None:
    engine = harness(block_size=B, blocks=4)
    first = engine.submit(prompt(8), 1)
    engine.run()
    engine.submit(prompt(15, start=40), 1)
    engine.run()
    again = engine.submit(prompt(8), 1)
    engine.run()
    assert engine.requests[first].cached == engine.requests[again].cached == 0
    assert any(report.removed for report in engine.reports)


def test_a_partly_evicted_chain_still_serves_its_head(harness: Any) -> None:
    engine = harness(block_size=B, blocks=4)
    engine.submit(prompt(13), 1)
    engine.run()
    engine.submit(prompt(7, start=40), 1)
    engine.run()
    again = engine.submit(prompt(13), 1)
    engine.run()
    assert engine.requests[again].cached == 8


@pytest.mark.parametrize("names", [1, 2, 5])
def test_colliding_hashes_cost_hits_and_never_an_answer(harness: Any, colliding: Any, names: int) -> None:
    engine = harness(block_size=2, blocks=16, hasher=colliding(names))
    # One token over and over: blocks at different depths hold the same ids under the same name.
    prompts = [[7] * 9, [7] * 5, [7, 7, 7, 8, 7, 7], [8] * 9, [7] * 9]
    for salt in (b"", b"x"):
        for p in prompts:
            engine.submit(p, 5, salt=salt)
            engine.run()
    assert 0 < len(engine.cache) <= names


def test_cached_tokens_stay_those_of_the_first_scheduling(harness: Any) -> None:
    engine = harness(block_size=B, blocks=6)
    engine.submit(prompt(4, start=30), 12, priority=1)
    low = engine.submit(prompt(8), 8)
    engine.run()
    request = engine.requests[low]
    assert request.ended.preemptions >= 1
    assert request.cached == 0


def test_hits_are_counted_against_the_prompt_alone(harness: Any) -> None:
    engine = harness(block_size=B)
    first = engine.submit(prompt(6), 8)
    engine.run()
    answer = engine.requests[first].tokens
    engine.submit(prompt(6), 8, output=answer[:6], seed=first)
    report = engine.step()
    assert report.tokens[0].cached_tokens == 6
    assert (report.stats.prompt_tokens, report.stats.hit_tokens) == (12, 6)
    engine.run()
