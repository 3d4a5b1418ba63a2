"""Streamed messages put together into one answer."""

from __future__ import annotations

from pagemill.v1 import generation_pb2


class Answer:
    """Takes the messages of one stream."""

    def __init__(self) -> None:
        self._started = generation_pb2.Started()
        self._choice = generation_pb2.Choice()
        self._texts: list[str] = []

    async def write(self, frame: generation_pb2.GenerateResponse) -> None:
        """Takes the next message; it never waits."""
        match frame.WhichOneof("event"):
            case "started":
                self._started = frame.started
            case "delta":
                self._texts.append(frame.delta.text)
                self._choice.token_ids.extend(frame.delta.token_ids)
            case "finished":
                self._choice.finished.CopyFrom(frame.finished)

    def whole(self) -> generation_pb2.GenerateTextResponse:
        """The answer, once the stream has ended well."""
        self._choice.text = "".join(self._texts)
        return generation_pb2.GenerateTextResponse(started=self._started, choices=[self._choice])
