"""What a caller has been given: the state that decides whether a frame is forwarded, trimmed or swallowed.

    attempt 1:  started  delta(0..3)  delta(3..7)  | replica lost
    attempt 2:  started  delta(5..9)  ...          -> started swallowed, delta trimmed to (7..9)

*Delivered* means accepted here in order, whether or not the caller has read it. No I/O: frames in, frames out.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from google.protobuf.message import DecodeError

from pagemill.v1 import generation_pb2, internal_pb2


class BrokenStreamError(Exception):
    """A replica broke the order of its stream: a gap, a second end, bytes that are no frame."""


@dataclass(slots=True)
class ChoiceDelivered:
    """One choice's share."""

    index: int
    token_ids: array[int] = field(default_factory=lambda: array("I"))
    last_delta: bytes = b""
    """The last delta forwarded: its text's length is read only when a failure asks for it."""
    finished: bool = False
    finish_reason: int = 0

    @property
    def text_bytes(self) -> int:
        """UTF-8 bytes of text delivered."""
        if not self.last_delta:
            return 0
        delta = generation_pb2.GenerateResponse.FromString(self.last_delta).delta
        return delta.text_offset + len(delta.text.encode())

    def progress(self) -> internal_pb2.ChoiceProgress:
        """The choice for a Continuation."""
        return internal_pb2.ChoiceProgress(
            index=self.index,
            token_ids=self.token_ids,
            text_bytes=self.text_bytes,
            finished=self.finished,
            finish_reason=self.finish_reason,
        )


class Delivered:
    """What was delivered of one call, over all its attempts."""

    def __init__(self, choices: int = 1, *, with_token_ids: bool = True) -> None:
        """A call of `choices` answers whose caller wants token ids, or does not: frames carry them to here anyway."""
        self._expected = choices
        self._with_token_ids = with_token_ids
        self._choices: dict[int, ChoiceDelivered] = {}
        self._held_started: bytes | None = None
        self._later_attempt = False
        self.tokens = 0
        """Tokens delivered, all choices together."""
        self.committed = False
        """The caller has got something: another attempt may not begin from scratch."""

    def begin_attempt(self) -> None:
        """Frames of another replica follow. Nothing that was not forwarded is its own."""
        self._held_started = None
        self._later_attempt = self.committed
        if not self.committed:
            self._choices.clear()
            self.tokens = 0

    @property
    def complete(self) -> bool:
        """Every choice has ended."""
        return sum(choice.finished for choice in self._choices.values()) == self._expected

    @property
    def tokens_per_choice(self) -> list[int]:
        """Tokens delivered, one count for each choice."""
        return [len(self._choices[i].token_ids) if i in self._choices else 0 for i in range(self._expected)]

    def progress(self) -> list[internal_pb2.ChoiceProgress]:
        """All choices for a Continuation."""
        return [choice.progress() for _, choice in sorted(self._choices.items())]

    def accept(self, frame: bytes) -> list[bytes]:
        """What of a replica's frame to forward, in order; BrokenStreamError where it cannot follow what came before."""
        try:
            header = internal_pb2.FrameHeader.FromString(frame)
        except DecodeError as error:
            raise BrokenStreamError("bytes that are no frame") from error
        event = header.WhichOneof("event")
        if event == "delta":
            return self._accept_delta(frame, header.delta)
        if event == "finished":
            return self._accept_finished(frame, header.finished)
        if event == "started" and not self.committed:
            self._held_started = frame
            return []
        # A later attempt's `started`; `resumed` is the relay's own to say; other events are unknown to this version.
        return [frame] if event is None and self.committed else []

    def _choice(self, index: int) -> ChoiceDelivered:
        if index >= self._expected:
            raise BrokenStreamError(f"choice {index} of {self._expected}")
        choice = self._choices.setdefault(index, ChoiceDelivered(index))
        if choice.finished:
            raise BrokenStreamError(f"choice {index} goes on after its end")
        return choice

    def _accept_delta(self, frame: bytes, delta: internal_pb2.DeltaHeader) -> list[bytes]:
        choice = self._choice(delta.index)
        have = len(choice.token_ids)
        if delta.position > have:
            raise BrokenStreamError(f"a gap of {delta.position - have} tokens at {have}")
        if delta.position < have or self._later_attempt:
            trimmed = _trim(frame, have, choice.text_bytes)
            if trimmed is None:
                return []
            frame = trimmed
        choice.token_ids.extend(delta.token_ids[have - delta.position :])
        self.tokens += len(choice.token_ids) - have
        choice.last_delta = frame
        if not self._with_token_ids:
            bare = _without_token_ids(frame)
            return self._commit(bare) if bare is not None else []
        return self._commit(frame)

    def _accept_finished(self, frame: bytes, finished: internal_pb2.FinishedHeader) -> list[bytes]:
        choice = self._choice(finished.index)
        choice.finished = True
        choice.finish_reason = finished.reason
        return self._commit(frame)

    def _commit(self, frame: bytes) -> list[bytes]:
        self.committed = True
        if self._held_started is None:
            return [frame]
        started, self._held_started = self._held_started, None
        return [started, frame]


def _trim(frame: bytes, tokens: int, text_bytes: int) -> bytes | None:
    """The part of a delta that lies past so many tokens and text bytes; None where nothing does."""
    message = generation_pb2.GenerateResponse.FromString(frame)
    delta = message.delta
    text = delta.text.encode()
    if delta.text_offset > text_bytes:
        raise BrokenStreamError(f"a gap of {delta.text_offset - text_bytes} bytes of text at {text_bytes}")
    try:
        kept_text = text[text_bytes - delta.text_offset :].decode()
    except UnicodeDecodeError as error:
        raise BrokenStreamError("text that differs from what was delivered") from error
    skip = min(tokens - delta.position, len(delta.token_ids))
    if skip == len(delta.token_ids) and not kept_text:
        return None
    del delta.token_ids[:skip]
    del delta.logprobs[:skip]
    delta.position += skip
    delta.text_offset = text_bytes
    delta.text = kept_text
    return message.SerializeToString()


def _without_token_ids(frame: bytes) -> bytes | None:
    """The delta without token ids; None where nothing else is in it."""
    message = generation_pb2.GenerateResponse.FromString(frame)
    message.delta.ClearField("token_ids")
    if not message.delta.text and not message.delta.logprobs:
        return None
    return message.SerializeToString()
