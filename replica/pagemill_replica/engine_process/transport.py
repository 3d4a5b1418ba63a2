"""The engine's end of the two sockets: messages in, messages out."""

from __future__ import annotations

import logging
from types import TracebackType

import zmq

from pagemill_replica.engine.messages import FromEngine, ToEngine
from pagemill_replica.engine_process.codec import BadFrameError, decode_to_engine, encode

_log = logging.getLogger("pagemill.engine")


class EngineTransport:
    """Two one-way sockets to the front.

    Messages to the front are bounded: a front that stops reading stops the engine, which holds no queue for it.
    """

    def __init__(self, to_engine: str, from_engine: str) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._in = self._context.socket(zmq.PULL)
        self._in.set_hwm(0)
        self._in.connect(to_engine)
        self._out = self._context.socket(zmq.PUSH)
        self._out.setsockopt(zmq.LINGER, 2000)
        self._out.connect(from_engine)

    def __enter__(self) -> EngineTransport:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._in.close(linger=0)
        self._out.close()
        self._context.term()

    def receive(self, wait_seconds: float) -> list[ToEngine | BadFrameError]:
        """All messages there are; where there are none, waits up to `wait_seconds` for the first."""
        messages: list[ToEngine | BadFrameError] = []
        if wait_seconds > 0 and not self._in.poll(int(wait_seconds * 1000)):
            return messages
        while True:
            try:
                frame = self._in.recv(zmq.NOBLOCK)
            except zmq.Again:
                return messages
            try:
                messages.append(decode_to_engine(frame))
            except BadFrameError as error:
                messages.append(error)

    def send(self, message: FromEngine) -> None:
        """Sends a message; blocks while the front is a thousand behind."""
        self._out.send(encode(message))
