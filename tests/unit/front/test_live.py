"""One request: what the engine reports becomes text, stops and statuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
import pytest

from pagemill.v1 import generation_pb2 as pb
from pagemill_common.errors import StatusError
from pagemill_common.tokenisation import Detokeniser, ModelTokenizer
from pagemill_replica.engine.messages import Ended, EndReason, Stage, Timing
from pagemill_replica.front.live import EngineFailureError, LiveRequest
from pagemill_replica.front.output import OutputBuffer
from pagemill_replica.front.registry import CallName

END = 26
Make = Callable[..., LiveRequest]


def ids(text: str) -> list[int]:
    return [ord(letter) - ord("a") for letter in text]


def ended(reason: EndReason, stage: Stage = Stage.DECODE, **fields: Any) -> Ended:
    return Ended(7, reason, stage, Timing(), **fields)


@pytest.fixture
def aborted() -> list[int]:
    return []


@pytest.fixture
def make(tokenizer: ModelTokenizer, aborted: list[int], clock: Callable[[], float]) -> Make:
    def build(limit: int = 1000, replayed: int = 0, **options: Any) -> LiveRequest:
        return LiveRequest(
            CallName("id"),
            7,
            detokeniser=Detokeniser(tokenizer, **options),
            output=OutputBuffer(limit, position=replayed),
            output_limit=limit,
            replayed_tokens=replayed,
            abort=aborted.append,
            clock=clock,
        )

    return build


async def read(live: LiveRequest) -> tuple[str, list[int]]:
    text, found = "", []  # type: ignore[var-annotated]
    while (piece := await live.output.take()) is not None:
        text, found = text + piece.text, found + piece.token_ids
    return text, found


async def test_stop_string_across_tokens_ends_text_and_engine_at_once(make: Make, aborted: list[int]) -> None:
    live = make(stop_strings=["cde"])
    for letter in "abcdefg":
        live.on_tokens(ids(letter), 0, None)
    assert await read(live) == ("ab", ids("abcde"))
    assert aborted == [7]
    assert live.finish is not None
    assert (live.finish.reason, live.finish.matched_string) == (pb.FINISH_REASON_STOP_STRING, "cde")
    assert live.completion_tokens == 5
    live.on_ended(ended(EndReason.ABORTED))
    assert live.finish.matched_string == "cde"


async def test_stop_string_wins_over_an_end_in_the_same_report(make: Make, aborted: list[int]) -> None:
    live = make(stop_strings=["b"])
    end = ended(EndReason.MAX_TOKENS)
    live.on_tokens(ids("abc"), 0, end)
    live.on_ended(end)
    assert await read(live) == ("a", ids("ab"))
    assert live.finish is not None
    assert live.finish.reason == pb.FINISH_REASON_STOP_STRING
    assert live.completion_tokens == 2
    assert aborted == [], "the engine has ended it by itself"


async def test_text_held_back_is_flushed_at_the_end(make: Make) -> None:
    live = make(stop_strings=["bcd"])
    end = ended(EndReason.MAX_TOKENS)
    live.on_tokens(ids("ab"), 0, None)
    live.on_tokens(ids("c"), 0, end)
    live.on_ended(end)
    assert await read(live) == ("abc", ids("abc"))
    assert live.finish is not None
    assert live.finish.reason == pb.FINISH_REASON_MAX_TOKENS


async def test_end_without_tokens_flushes_too(make: Make) -> None:
    live = make(stop_strings=["bcd"])
    live.on_tokens(ids("ab"), 0, None)
    live.on_ended(ended(EndReason.CONTEXT_FULL))
    assert await read(live) == ("ab", ids("ab"))
    assert live.finish is not None
    assert live.finish.reason == pb.FINISH_REASON_CONTEXT_FULL


@pytest.mark.parametrize(("include", "text"), [(False, "a"), (True, "ab")])
async def test_stop_token_counts_and_its_text_shows_only_where_asked(make: Make, include: bool, text: str) -> None:
    live = make(stop_token_ids=ids("b"), include_stop=include)
    end = ended(EndReason.STOP_TOKEN, matched_token_id=1)
    live.on_tokens(ids("a"), 0, None)
    live.on_tokens(ids("b"), 0, end)
    live.on_ended(end)
    assert await read(live) == (text, ids("ab"))
    assert live.finish is not None
    assert (live.finish.reason, live.finish.matched_token_id) == (pb.FINISH_REASON_STOP_TOKEN, 1)
    assert live.completion_tokens == 2


async def test_end_of_text_is_counted_and_not_shown(make: Make) -> None:
    live = make()
    end = ended(EndReason.END_OF_TEXT, matched_token_id=END)
    live.on_tokens(ids("a"), 3, None)
    live.on_tokens([END], 3, end)
    live.on_ended(end)
    assert await read(live) == ("a", [0, END])
    assert live.completion_tokens == 2
    assert live.cached_tokens == 3


@pytest.mark.parametrize(
    ("reason", "code", "name"),
    [
        (EndReason.TIMEOUT, grpc.StatusCode.DEADLINE_EXCEEDED, "DEADLINE_EXCEEDED"),
        (EndReason.REJECTED, grpc.StatusCode.OUT_OF_RANGE, "TOO_LONG"),
        (EndReason.ABORTED, grpc.StatusCode.UNAVAILABLE, "REPLICA_LOST"),
    ],
)
async def test_ends_that_are_failures(make: Make, reason: EndReason, code: grpc.StatusCode, name: str) -> None:
    live = make()
    live.on_ended(ended(reason, Stage.PREFILL))
    with pytest.raises(StatusError) as caught:
        await read(live)
    assert (caught.value.code, caught.value.reason) == (code, name)
    assert live.finish is None


async def test_failed_step_is_no_status_of_ours(make: Make) -> None:
    live = make()
    live.on_ended(ended(EndReason.FAILED, message="device broke"))
    with pytest.raises(EngineFailureError, match="device broke"):
        await read(live)


async def test_reader_that_leaves_too_much_is_ended_and_its_memory_freed(make: Make, aborted: list[int]) -> None:
    live = make(limit=100)
    for _ in range(50):
        live.on_tokens(ids("abc"), 0, None)
    with pytest.raises(StatusError) as caught:
        await read(live)
    assert caught.value.reason == "SLOW_READER"
    assert aborted == [7]
    assert live.completion_tokens < 60, "what comes after is not even made into text"


async def test_output_that_is_complete_may_exceed_the_limit(make: Make) -> None:
    live = make(limit=100)
    end = ended(EndReason.MAX_TOKENS)
    live.on_tokens(ids("abc") * 30, 0, end)
    live.on_ended(end)
    text, _ = await read(live)
    assert len(text) == 90


async def test_engine_lost_tells_what_was_taken(make: Make) -> None:
    live = make()
    live.on_tokens(ids("ab"), 0, None)
    await live.output.take()
    live.on_tokens(ids("c"), 0, None)
    live.on_engine_lost("died")
    with pytest.raises(StatusError) as caught:
        await read(live)
    assert caught.value.reason == "PARTIAL_OUTPUT"
    assert caught.value.details[1].tokens_per_choice == [2]  # type: ignore[attr-defined]


async def test_leaving_tells_the_engine_until_it_has_let_go(make: Make, aborted: list[int]) -> None:
    live = make()
    live.leave()
    assert aborted == [7]
    live.on_ended(ended(EndReason.ABORTED))
    live.leave()
    assert aborted == [7]


async def test_replayed_tokens_count_as_output(make: Make) -> None:
    live = make(replayed=4)
    end = ended(EndReason.MAX_TOKENS)
    live.on_tokens(ids("a"), 0, end)
    live.on_ended(end)
    piece = await live.output.take()
    assert piece is not None
    assert piece.position == 4
    assert live.completion_tokens == 5


async def test_stage_as_far_as_the_front_can_tell(make: Make) -> None:
    live = make()
    assert live.stage is Stage.QUEUE
    live.schedule()
    assert live.stage is Stage.PREFILL
    live.on_tokens(ids("a"), 0, None)
    assert live.stage is Stage.DECODE
