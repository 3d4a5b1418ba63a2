"""Frames between front and engine: one byte that names the message, then the message in MessagePack.

The engine's messages stay plain dataclasses, which msgspec reads and writes; only the tag is added here.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from pagemill_replica.engine.messages import (
    Abort,
    Failed,
    FromEngine,
    Loading,
    Ready,
    Shutdown,
    StepReport,
    Submit,
    ToEngine,
)

_TO_ENGINE: dict[int, type[ToEngine]] = {1: Submit, 2: Abort, 3: Shutdown}
_FROM_ENGINE: dict[int, type[FromEngine]] = {16: Loading, 17: Ready, 18: StepReport, 19: Failed}
_TAGS: dict[type, bytes] = {kind: bytes([tag]) for tag, kind in (_TO_ENGINE | _FROM_ENGINE).items()}
_DECODERS = {tag: msgspec.msgpack.Decoder(kind) for tag, kind in (_TO_ENGINE | _FROM_ENGINE).items()}
_ENCODER = msgspec.msgpack.Encoder()


@dataclass(frozen=True, slots=True)
class _Keyed:
    key: int


_KEY_DECODER = msgspec.msgpack.Decoder(_Keyed)


class BadFrameError(ValueError):
    """A frame that is no message of its side."""

    def __init__(self, reason: str, key: int | None) -> None:
        super().__init__(reason)
        self.key = key
        """The request it speaks of, where that much can be read."""


def encode(message: ToEngine | FromEngine) -> bytes:
    """The frame of a message."""
    return _TAGS[type(message)] + _ENCODER.encode(message)


def decode_to_engine(frame: bytes) -> ToEngine:
    """A message to the engine. Raises BadFrameError."""
    message = _decode(frame)
    if isinstance(message, Submit | Abort | Shutdown):
        return message
    raise BadFrameError(f"{type(message).__name__} is no message to the engine", None)


def decode_from_engine(frame: bytes) -> FromEngine:
    """A message of the engine. Raises BadFrameError."""
    message = _decode(frame)
    if isinstance(message, Loading | Ready | StepReport | Failed):
        return message
    raise BadFrameError(f"{type(message).__name__} is no message of the engine", None)


def _decode(frame: bytes) -> ToEngine | FromEngine:
    decoder = _DECODERS.get(frame[0]) if frame else None
    if decoder is None:
        raise BadFrameError(f"a frame of {len(frame)} bytes has no known tag", None)
    body = memoryview(frame)[1:]
    try:
        message: ToEngine | FromEngine = decoder.decode(body)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise BadFrameError(str(error), _key_of(body)) from error
    return message


def _key_of(body: memoryview) -> int | None:
    try:
        return _KEY_DECODER.decode(body).key
    except msgspec.DecodeError:
        return None
