"""Streamed messages put together into one answer."""

from __future__ import annotations

from collections.abc import AsyncIterator

from pagemill.v1 import generation_pb2


async def collect(frames: AsyncIterator[generation_pb2.GenerateResponse]) -> generation_pb2.GenerateTextResponse:
    """Reads a stream to its end. `frames` raises where the request fails."""
    answer = generation_pb2.GenerateTextResponse()
    choice = generation_pb2.Choice()
    texts: list[str] = []
    async for frame in frames:
        match frame.WhichOneof("event"):
            case "started":
                answer.started.CopyFrom(frame.started)
            case "delta":
                texts.append(frame.delta.text)
                choice.token_ids.extend(frame.delta.token_ids)
            case "finished":
                choice.finished.CopyFrom(frame.finished)
    choice.text = "".join(texts)
    answer.choices.append(choice)
    return answer
