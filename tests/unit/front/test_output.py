"""The unread output of a stream."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagemill_replica.front.output import TOKEN_BYTES, OutputBuffer


async def test_reader_that_keeps_up_gets_every_push_alone() -> None:
    buffer = OutputBuffer(1000)
    buffer.push("a", [1])
    first = await buffer.take()
    buffer.push("b", [2])
    second = await buffer.take()
    assert first is not None
    assert second is not None
    assert (first.text, first.token_ids, second.text, second.token_ids) == ("a", [1], "b", [2])


async def test_what_gathers_leaves_in_one_piece_with_its_offsets() -> None:
    buffer = OutputBuffer(1000, position=4, text_offset=9)
    buffer.push("é", [1])
    buffer.push("", [2])
    buffer.push("x", [3])
    piece = await buffer.take()
    assert piece is not None
    assert (piece.text, piece.token_ids, piece.position, piece.text_offset) == ("éx", [1, 2, 3], 4, 9)
    buffer.push("y", [4])
    piece = await buffer.take()
    assert piece is not None
    assert (piece.position, piece.text_offset) == (7, 12)


async def test_take_waits_for_a_push() -> None:
    buffer = OutputBuffer(1000)
    waiting = asyncio.ensure_future(buffer.take())
    await asyncio.sleep(0)
    assert not waiting.done()
    buffer.push("a", [1])
    piece = await waiting
    assert piece is not None
    assert piece.text == "a"


async def test_failure_breaks_off_a_write_that_is_under_way() -> None:
    buffer, begun = OutputBuffer(1000), asyncio.Event()

    async def write(_: str) -> None:
        begun.set()
        await asyncio.Event().wait()

    delivering = asyncio.ensure_future(buffer.deliver(write, "message"))
    await begun.wait()
    buffer.fail(RuntimeError("gone"))
    buffer.fail(RuntimeError("again"))
    with pytest.raises(RuntimeError, match="gone"):
        await delivering
    with pytest.raises(RuntimeError, match="gone"):
        await buffer.deliver(write, "next")


async def test_failure_between_two_writes_harms_neither() -> None:
    buffer, written = OutputBuffer(1000), []  # type: ignore[var-annotated]

    async def write(message: str) -> None:
        written.append(message)
        if message == "b":
            buffer.complete()

    await buffer.deliver(write, "a")
    await buffer.deliver(write, "b")
    assert written == ["a", "b"]
    assert await buffer.take() is None


async def test_complete_delivers_the_rest_and_then_ends() -> None:
    buffer = OutputBuffer(1000)
    buffer.push("a", [1])
    buffer.complete()
    buffer.push("late", [2])
    piece = await buffer.take()
    assert piece is not None
    assert piece.text == "a"
    assert await buffer.take() is None
    assert await buffer.take() is None


async def test_failure_replaces_what_is_left_and_the_first_counts() -> None:
    buffer = OutputBuffer(1000)
    buffer.push("a", [1])
    buffer.fail(ValueError("first"))
    buffer.fail(ValueError("second"))
    buffer.complete()
    with pytest.raises(ValueError, match="first"):
        await buffer.take()


async def test_failure_after_completion_changes_nothing() -> None:
    buffer = OutputBuffer(1000)
    buffer.complete()
    buffer.fail(ValueError("late"))
    assert await buffer.take() is None


def test_limit_counts_bytes_and_tokens() -> None:
    buffer = OutputBuffer(10 + 2 * TOKEN_BYTES)
    buffer.push("é" * 5, [1, 2])
    assert not buffer.overfull
    buffer.push("", [3])
    assert buffer.overfull


@given(st.lists(st.one_of(st.none(), st.tuples(st.text(max_size=5), st.lists(st.integers(0, 9), max_size=3)))))
def test_pieces_joined_are_what_was_pushed_without_gap_or_overlap(script: list[tuple[str, list[int]] | None]) -> None:
    async def run() -> None:
        buffer = OutputBuffer(1 << 20)
        text, ids = "", []  # type: ignore[var-annotated]
        sent_text, sent_ids, pending = "", [], False  # type: ignore[var-annotated]
        for action in script:
            if action is not None:
                buffer.push(*action)
                text, ids, pending = text + action[0], ids + action[1], pending or bool(action[0] or action[1])
            elif pending:
                piece = await buffer.take()
                assert piece is not None
                assert (piece.position, piece.text_offset) == (len(sent_ids), len(sent_text.encode()))
                sent_text, sent_ids, pending = sent_text + piece.text, sent_ids + piece.token_ids, False
        buffer.complete()
        while (piece := await buffer.take()) is not None:
            assert (piece.position, piece.text_offset) == (len(sent_ids), len(sent_text.encode()))
            sent_text, sent_ids = sent_text + piece.text, sent_ids + piece.token_ids
        assert (sent_text, sent_ids) == (text, ids)

    asyncio.run(run())
