"""How the messages of a stream add up."""

from __future__ import annotations

from pagemill.answer import AnswerState, FinishReason, finished_from, total_usage
from pagemill.v1 import generation_pb2 as pb


def delta(index: int, text: str, *ids: int) -> pb.GenerateResponse:
    return pb.GenerateResponse(delta=pb.Delta(index=index, text=text, token_ids=ids))


def finished(index: int, completion: int = 1) -> pb.GenerateResponse:
    usage = pb.Usage(prompt_tokens=5, cached_tokens=1, completion_tokens=completion)
    return pb.GenerateResponse(finished=pb.Finished(index=index, reason=pb.FINISH_REASON_MAX_TOKENS, usage=usage))


def test_choices_are_kept_apart() -> None:
    state = AnswerState()
    for message in (delta(1, "b", 2), delta(0, "a", 1), delta(1, "B"), finished(1, 2), finished(0, 3)):
        state.apply(message)
    assert [(c.index, c.text, c.token_ids) for c in state.choices] == [(0, "a", (1,)), (1, "bB", (2,))]
    assert state.complete
    assert total_usage(state.choices).completion_tokens == 5
    assert total_usage(state.choices).prompt_tokens == 5


def test_an_answer_is_complete_when_all_choices_have_ended() -> None:
    state = AnswerState()
    assert not state.complete
    state.apply(delta(0, "a"))
    state.apply(delta(1, "b"))
    state.apply(finished(0))
    assert not state.complete
    state.apply(finished(1))
    assert state.complete


def test_an_answer_without_output_is_complete_too() -> None:
    state = AnswerState()
    state.apply(finished(0, 0))
    assert state.complete
    assert state.choice(0).text == ""


def test_a_failover_is_seen_in_the_replicas() -> None:
    state = AnswerState()
    state.apply(pb.GenerateResponse(started=pb.Started(replica="a")))
    state.apply(pb.GenerateResponse(resumed=pb.Resumed(replica="b", attempt=2)))
    assert state.replicas == ["a", "b"]


def test_only_output_makes_chunks() -> None:
    state = AnswerState()
    assert state.apply(pb.GenerateResponse(started=pb.Started())) is None
    assert state.apply(delta(0, "")) is None
    assert state.apply(delta(0, "", 7)) is not None
    assert state.apply(finished(0)) is None
    assert state.apply(pb.GenerateResponse()) is None


def test_every_reason_of_the_wire_is_known() -> None:
    for number in pb.FinishReason.values():
        reason = finished_from(pb.Finished(reason=number)).reason
        expected = pb.FinishReason.Name(number).removeprefix("FINISH_REASON_").lower()
        assert reason == ("unknown" if number == 0 else expected)
    assert finished_from(pb.Finished(reason=99)).reason is FinishReason.UNKNOWN  # type: ignore[arg-type]


def test_no_matched_token_differs_from_token_zero() -> None:
    assert finished_from(pb.Finished()).matched_token_id is None
    assert finished_from(pb.Finished(matched_token_id=0)).matched_token_id == 0
