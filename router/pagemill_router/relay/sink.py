"""Where frames go: a caller's stream, or one whole answer."""

from __future__ import annotations

from typing import Any, Protocol

import grpc

from pagemill.v1 import generation_pb2
from pagemill_common.grpc.sending import send


class Sink(Protocol):
    """Takes frames in order."""

    async def write(self, frame: bytes) -> None:
        """Takes one frame; returns when the next may come."""
        ...

    def restart(self) -> bool:
        """Forgets everything, so that the answer may begin again elsewhere; False where the caller has seen it."""
        ...


class StreamSink:
    """The caller's stream. A write returns when the transport has taken it: a slow reader slows the replica."""

    def __init__(self, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        self._context = context

    async def write(self, frame: bytes) -> None:
        """Sends the frame as it is. StatusError where the caller has left or the time has passed meanwhile."""
        await send(self._context, frame)

    def restart(self) -> bool:
        """What was sent was sent."""
        return False


class WholeAnswer:
    """Collects the frames of one call for GenerateText."""

    def __init__(self) -> None:
        self._frames: list[bytes] = []

    async def write(self, frame: bytes) -> None:
        """Keeps the frame."""
        self._frames.append(frame)

    def restart(self) -> bool:
        """Nobody has seen it yet."""
        self._frames.clear()
        return True

    def response(self) -> generation_pb2.GenerateTextResponse:
        """Everything that Generate would have streamed, by choice."""
        answer = generation_pb2.GenerateTextResponse()
        choices: dict[int, generation_pb2.Choice] = {}
        for frame in self._frames:
            message = generation_pb2.GenerateResponse.FromString(frame)
            event = message.WhichOneof("event")
            if event == "started":
                answer.started.CopyFrom(message.started)
            elif event == "delta":
                choice = choices.setdefault(message.delta.index, generation_pb2.Choice(index=message.delta.index))
                choice.text += message.delta.text
                choice.token_ids.extend(message.delta.token_ids)
                choice.logprobs.extend(message.delta.logprobs)
            elif event == "finished":
                choice = choices.setdefault(message.finished.index, generation_pb2.Choice(index=message.finished.index))
                choice.finished.CopyFrom(message.finished)
        answer.choices.extend(choice for _, choice in sorted(choices.items()))
        return answer
