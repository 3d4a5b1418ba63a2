"""Frames between front and engine."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagemill_replica.engine.messages import (
    Abort,
    Ended,
    EndReason,
    EngineStats,
    Failed,
    FromEngine,
    Loading,
    NewTokens,
    Ready,
    Shutdown,
    Stage,
    StepReport,
    Submit,
    Timing,
    ToEngine,
)
from pagemill_replica.engine.params import Sampling, Stop
from pagemill_replica.engine_process.codec import BadFrameError, decode_from_engine, decode_to_engine, encode

STATS = EngineStats(9, 1, 2, 3, 4, 5, 6, 7, 8, 0.25)
SUBMIT = Submit(
    key=2**53,
    prompt_ids=[0, 7, 2**32 - 1],
    sampling=Sampling(0.5, 40, 0.9, 0.05, 1.1, -0.5, 2.0, {7: -100.0, 9: 1.5}, (1, 2), 2**64 - 1, 3),
    stop=Stop(10, 2, (5,), (6, 7)),
    output_ids=[8, 9],
    priority=-3,
    time_left=1.5,
    salt=b"\x00\xff",
    traceparent="00-a-b-01",
)
TO_ENGINE: list[ToEngine] = [SUBMIT, Submit(1, [1], Sampling(), Stop(4)), Abort(7), Shutdown()]
FROM_ENGINE: list[FromEngine] = [
    Loading("loading weights", 0.5),
    Ready(1, 2, 3, 4, 5, 6, 7, "float32", "cpu", True, 0.5),
    StepReport(
        tokens=[NewTokens(1, [5, 6], 3)],
        ended=[Ended(1, reason, stage, Timing(1.0, 2.0, 3.0), 5, 1, "é") for reason in EndReason for stage in Stage],
        stats=STATS,
        held_blocks={1: 2, 2**40: 3},
        stored=[b"a" * 32],
        removed=[b"\xff" * 32],
    ),
    StepReport([], [Ended(1, EndReason.ABORTED, Stage.QUEUE, Timing())], STATS),
    Failed("the device broke: é"),
]


@pytest.mark.parametrize("message", TO_ENGINE, ids=lambda m: type(m).__name__)
def test_message_to_the_engine_comes_back_equal(message: ToEngine) -> None:
    assert decode_to_engine(encode(message)) == message


@pytest.mark.parametrize("message", FROM_ENGINE, ids=lambda m: type(m).__name__)
def test_message_of_the_engine_comes_back_equal(message: FromEngine) -> None:
    assert decode_from_engine(encode(message)) == message


@pytest.mark.parametrize("message", TO_ENGINE, ids=lambda m: type(m).__name__)
def test_message_of_one_side_is_none_of_the_other(message: ToEngine) -> None:
    with pytest.raises(BadFrameError, match="no message of the engine"):
        decode_from_engine(encode(message))
    with pytest.raises(BadFrameError, match="no message to the engine"):
        decode_to_engine(encode(Failed("x")))


@pytest.mark.parametrize("frame", [b"", b"\x00", b"\x04\x80", b"\xff" + encode(Abort(1))[1:]])
def test_unknown_tag_is_an_error(frame: bytes) -> None:
    for decode in (decode_to_engine, decode_from_engine):
        with pytest.raises(BadFrameError, match="no known tag"):
            decode(frame)


def test_unreadable_request_still_tells_its_key() -> None:
    """So that its caller gets an end."""
    frame = encode(SUBMIT).replace(b"prompt_ids", b"prompt_idz")
    with pytest.raises(BadFrameError, match="prompt_ids") as caught:
        decode_to_engine(frame)
    assert caught.value.key == SUBMIT.key


@pytest.mark.parametrize(
    "message",
    [
        Submit(1, ["x"], Sampling(), Stop(1)),  # type: ignore[list-item]
        Submit(1, [1], Sampling(temperature="hot"), Stop(1)),  # type: ignore[arg-type]
        Submit(1, [1], Sampling(), Stop(None)),  # type: ignore[arg-type]
        Abort("1"),  # type: ignore[arg-type]
    ],
)
def test_field_of_another_type_is_an_error(message: ToEngine) -> None:
    with pytest.raises(BadFrameError):
        decode_to_engine(encode(message))


@given(
    st.sampled_from([encode(message) for message in [*TO_ENGINE, *FROM_ENGINE]]),
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), min_size=1, max_size=4),
    st.integers(0, 400),
)
def test_corrupt_bytes_are_a_message_or_the_one_error(frame: bytes, flips: list[tuple[int, int]], cut: int) -> None:
    broken = bytearray(frame)
    for at, value in flips:
        broken[at % len(broken)] = value
    if cut < len(broken):
        del broken[cut:]
    for decode in (decode_to_engine, decode_from_engine):
        try:
            decode(bytes(broken))
        except BadFrameError:
            continue
