"""Callers that note how every stream ended."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import grpc

from pagemill.v1 import GenerateRequest, GenerateResponse, GenerationServiceStub, SamplingParams, StopConditions


@dataclass
class Outcome:
    """All that a caller saw of one stream."""

    prompt: str
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    started: list[str] = field(default_factory=list)
    terminals: int = 0
    finish_reason: int = 0
    status: grpc.StatusCode | None = None
    details: str = ""
    cancelled: bool = False

    @property
    def finished(self) -> bool:
        return self.terminals == 1 and self.status is grpc.StatusCode.OK

    def check_shape(self) -> None:
        """One terminal message and OK, or none and one status; never both, never neither."""
        assert self.status is not None, self
        if self.status is grpc.StatusCode.OK:
            assert self.terminals == 1, self
            assert len(self.started) == 1, self
        else:
            assert self.terminals == 0, self
        assert len(self.started) <= 1, self


def question(prompt: str, max_tokens: int = 12, **fields: object) -> GenerateRequest:
    """A greedy question."""
    return GenerateRequest(
        text=prompt,
        sampling=SamplingParams(temperature=0.0),
        stop=StopConditions(max_tokens=max_tokens, ignore_end_of_text=True),
        **fields,  # type: ignore[arg-type]
    )


async def ask(channel: grpc.aio.Channel, request: GenerateRequest, cancel_after: int | None = None) -> Outcome:
    """Reads one stream to its end, or cancels it after so many tokens."""
    outcome = Outcome(request.text)
    call = GenerationServiceStub(channel).Generate(request, timeout=120)
    try:
        async for response in call:
            _note(outcome, response)
            if cancel_after is not None and len(outcome.token_ids) >= cancel_after:
                outcome.cancelled = call.cancel()
                break
        outcome.status = await call.code()
    except grpc.aio.AioRpcError as error:
        outcome.status, outcome.details = error.code(), error.details() or ""
    except asyncio.CancelledError:
        if not call.cancelled():
            raise
        outcome.status = grpc.StatusCode.CANCELLED
    return outcome


def _note(outcome: Outcome, response: GenerateResponse) -> None:
    kind = response.WhichOneof("event")
    assert outcome.terminals == 0, f"{kind} after finished"
    if kind == "started":
        assert not outcome.token_ids, "started after a delta"
        outcome.started.append(response.started.replica)
    elif kind == "delta":
        assert outcome.started, "a delta before started"
        assert response.delta.position == len(outcome.token_ids), "a gap or an overlap"
        assert response.delta.text_offset == len(outcome.text.encode())
        outcome.text += response.delta.text
        outcome.token_ids += response.delta.token_ids
    elif kind == "finished":
        outcome.terminals += 1
        outcome.finish_reason = response.finished.reason
        assert response.finished.usage.completion_tokens == len(outcome.token_ids)
