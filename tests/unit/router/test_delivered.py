"""What the relay forwards, trims, swallows and refuses."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagemill.v1 import generation_pb2 as pb
from pagemill_router.relay.delivered import BrokenStreamError, Delivered

IDS = list(range(100, 140))
TEXT = "".join(chr(0xE0 + i) for i in range(40))  # two bytes each, one a token


def started(replica: str = "a") -> bytes:
    return pb.GenerateResponse(started=pb.Started(request_id="r", replica=replica)).SerializeToString()


def delta(start: int, end: int, *, index: int = 0, text: bool = True) -> bytes:
    return pb.GenerateResponse(
        delta=pb.Delta(
            index=index,
            token_ids=IDS[start:end],
            text=TEXT[start:end] if text else "",
            position=start,
            text_offset=2 * start,
        )
    ).SerializeToString()


def finished(index: int = 0) -> bytes:
    return pb.GenerateResponse(
        finished=pb.Finished(index=index, reason=pb.FINISH_REASON_MAX_TOKENS)
    ).SerializeToString()


def parse(frames: list[bytes]) -> list[pb.GenerateResponse]:
    return [pb.GenerateResponse.FromString(frame) for frame in frames]


def test_frames_pass_unchanged_and_started_comes_with_the_first_delta() -> None:
    delivered = Delivered()
    assert delivered.accept(started()) == []
    assert not delivered.committed
    assert delivered.accept(delta(0, 2)) == [started(), delta(0, 2)]
    assert delivered.committed
    assert delivered.accept(delta(2, 3)) == [delta(2, 3)]
    assert delivered.accept(finished()) == [finished()]
    assert delivered.complete
    assert delivered.tokens_per_choice == [3]


def test_an_answer_without_a_token_still_starts_and_ends() -> None:
    delivered = Delivered()
    delivered.accept(started())
    assert delivered.accept(finished()) == [started(), finished()]


def test_started_of_an_attempt_that_brought_nothing_is_forgotten() -> None:
    delivered = Delivered()
    delivered.accept(started("a"))
    delivered.begin_attempt()
    delivered.accept(started("b"))
    assert delivered.accept(delta(0, 1))[0] == started("b")


def test_a_later_attempt_is_trimmed_to_what_is_missing() -> None:
    delivered = Delivered()
    delivered.accept(started())
    delivered.accept(delta(0, 5))
    delivered.begin_attempt()
    assert delivered.accept(started("b")) == []
    assert delivered.accept(delta(0, 3)) == []
    (frame,) = parse(delivered.accept(delta(3, 8)))
    assert list(frame.delta.token_ids) == IDS[5:8]
    assert frame.delta.text == TEXT[5:8]
    assert (frame.delta.position, frame.delta.text_offset) == (5, 10)


def test_held_text_may_follow_its_tokens() -> None:
    delivered = Delivered()
    delivered.accept(started())
    delivered.accept(delta(0, 5, text=False))
    late = pb.GenerateResponse(delta=pb.Delta(text=TEXT[:5], position=5)).SerializeToString()
    assert delivered.accept(late) == [late]
    assert delivered.progress()[0].text_bytes == 10


def test_a_gap_in_tokens_or_text_is_an_error() -> None:
    delivered = Delivered()
    delivered.accept(started())
    delivered.accept(delta(0, 2))
    with pytest.raises(BrokenStreamError, match="gap of 1 tokens at 2"):
        delivered.accept(delta(3, 4))
    delivered.begin_attempt()
    skipped = pb.GenerateResponse(delta=pb.Delta(token_ids=IDS[2:3], text="x", position=2, text_offset=6))
    with pytest.raises(BrokenStreamError, match="bytes of text"):
        delivered.accept(skipped.SerializeToString())


@pytest.mark.parametrize("frame", [delta(3, 4), finished()])
def test_nothing_follows_the_end_of_a_choice(frame: bytes) -> None:
    delivered = Delivered()
    delivered.accept(delta(0, 3))
    delivered.accept(finished())
    with pytest.raises(BrokenStreamError, match="after its end"):
        delivered.accept(frame)


def test_a_choice_that_was_not_asked_for_is_an_error() -> None:
    with pytest.raises(BrokenStreamError, match="choice 1 of 1"):
        Delivered().accept(delta(0, 1, index=1))


def test_bytes_that_are_no_frame_are_an_error() -> None:
    with pytest.raises(BrokenStreamError, match="no frame"):
        Delivered().accept(b"\xff\xff\xff")


def test_resumed_is_never_taken_from_a_replica() -> None:
    delivered = Delivered()
    delivered.accept(delta(0, 1))
    assert delivered.accept(pb.GenerateResponse(resumed=pb.Resumed(replica="x")).SerializeToString()) == []


def test_token_ids_are_kept_here_and_left_out_where_not_asked_for() -> None:
    delivered = Delivered(with_token_ids=False)
    delivered.accept(started())
    assert delivered.accept(delta(0, 2, text=False)) == []
    _, frame = parse(delivered.accept(delta(2, 4)))
    assert not frame.delta.token_ids
    assert frame.delta.text == TEXT[2:4]
    assert list(delivered.progress()[0].token_ids) == IDS[:4]


def test_choices_progress_apart() -> None:
    delivered = Delivered(2)
    delivered.accept(delta(0, 3, index=1))
    delivered.accept(finished(1))
    assert delivered.tokens_per_choice == [0, 3]
    assert not delivered.complete
    delivered.accept(finished(0))
    assert delivered.complete


cuts = st.lists(st.integers(1, 39), max_size=12).map(lambda marks: [0, *sorted(set(marks)), 40])


@given(first=cuts, second=cuts, lost_after=st.integers(0, 12), restart_at=st.integers(0, 40), seed=st.integers(0, 9))
def test_whatever_the_cuts_the_caller_gets_each_token_and_byte_once(
    first: list[int], second: list[int], lost_after: int, restart_at: int, seed: int
) -> None:
    """The second replica begins anywhere at or before what was delivered, and may send parts twice."""
    delivered, got = Delivered(), []
    for start, end in list(itertools.pairwise(first))[:lost_after]:
        got += delivered.accept(delta(start, end))
    have = delivered.tokens_per_choice[0]
    delivered.begin_attempt()
    restart_at = min(restart_at, have)
    rng = random.Random(seed)
    for start, end in itertools.pairwise(second):
        if end <= restart_at:
            continue
        frame = delta(max(start, restart_at), end)
        for _ in range(rng.choice((1, 1, 2))):
            got += delivered.accept(frame)
    events = parse(got)
    assert [i for event in events for i in event.delta.token_ids] == IDS
    assert "".join(event.delta.text for event in events) == TEXT
