"""What an answer is made of, and how the messages of a stream add up to it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from google.protobuf.duration_pb2 import Duration

from pagemill.v1 import generation_pb2 as pb


class FinishReason(StrEnum):
    """Why a choice ended."""

    UNKNOWN = "unknown"
    """A reason that this version of the client does not know."""
    END_OF_TEXT = "end_of_text"
    STOP_STRING = "stop_string"
    STOP_TOKEN = "stop_token"
    MAX_TOKENS = "max_tokens"
    CONTEXT_FULL = "context_full"


_REASONS = {
    pb.FINISH_REASON_END_OF_TEXT: FinishReason.END_OF_TEXT,
    pb.FINISH_REASON_STOP_STRING: FinishReason.STOP_STRING,
    pb.FINISH_REASON_STOP_TOKEN: FinishReason.STOP_TOKEN,
    pb.FINISH_REASON_MAX_TOKENS: FinishReason.MAX_TOKENS,
    pb.FINISH_REASON_CONTEXT_FULL: FinishReason.CONTEXT_FULL,
}


@dataclass(frozen=True, slots=True)
class Started:
    """What the first message of a stream says."""

    request_id: str
    model: str
    replica: str
    prompt_tokens: int
    cached_tokens: int
    """Prompt tokens found in the prefix cache."""
    seed: int
    """The seed in effect: the same request with it draws the same random bits."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class Timing:
    """Where the time went on the replica, in seconds."""

    queue: float
    prefill: float
    decode: float


@dataclass(frozen=True, slots=True)
class Finished:
    """How one choice ended."""

    index: int
    reason: FinishReason
    matched_string: str
    """The stop string that appeared, or empty."""
    matched_token_id: int | None
    """The token that ended the text, where one did."""
    usage: Usage
    timing: Timing
    approximate: bool
    """The answer went on, after a failure, on a replica whose arithmetic differs."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """New output of one choice, in the order of arrival."""

    text: str
    """Whole characters. May be empty, and may lag behind the tokens."""
    token_ids: tuple[int, ...] = ()
    index: int = 0
    """Which choice."""
    position: int = 0
    """Output tokens of this choice before this chunk."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One answer so far, or whole once `finished` is set."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    finished: Finished | None


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer, as `generate_text` returns it."""

    started: Started
    choices: tuple[Choice, ...]

    @property
    def text(self) -> str:
        """The text of the first choice."""
        return self.choices[0].text

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The token ids of the first choice."""
        return self.choices[0].token_ids

    @property
    def finished(self) -> Finished:
        """How the first choice ended."""
        finished = self.choices[0].finished
        assert finished is not None, "a whole answer has ended"
        return finished

    @property
    def usage(self) -> Usage:
        """Token counts, completion tokens of all choices added up."""
        return total_usage(self.choices)


@dataclass(slots=True)
class _Draft:
    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    finished: Finished | None = None


class AnswerState:
    """Adds up the messages of one stream."""

    def __init__(self) -> None:
        self.started: Started | None = None
        self.replicas: list[str] = []
        """The replicas that answered, in order; more than one after a failover."""
        self._drafts: dict[int, _Draft] = {}

    def apply(self, message: pb.GenerateResponse) -> Chunk | None:
        """Takes one message in; the chunk it stands for, where it brings output."""
        match message.WhichOneof("event"):
            case "delta":
                return self._delta(message.delta)
            case "started":
                self.started = started_from(message.started)
                self.replicas.append(self.started.replica)
            case "finished":
                self._draft(message.finished.index).finished = finished_from(message.finished)
            case "resumed":
                self.replicas.append(message.resumed.replica)
            case _:
                pass
        return None

    def choice(self, index: int) -> Choice:
        """One choice so far."""
        draft = self._drafts.get(index) or _Draft()
        return Choice(index, "".join(draft.texts), tuple(draft.token_ids), draft.finished)

    @property
    def choices(self) -> tuple[Choice, ...]:
        """All choices so far, by index."""
        return tuple(self.choice(index) for index in sorted(self._drafts))

    @property
    def finished(self) -> Finished | None:
        """How the first choice ended, once it has."""
        draft = self._drafts.get(0)
        return draft.finished if draft else None

    @property
    def complete(self) -> bool:
        """Something was started, and all of it has ended."""
        return bool(self._drafts) and all(d.finished is not None for d in self._drafts.values())

    def _delta(self, delta: pb.Delta) -> Chunk | None:
        draft = self._draft(delta.index)
        if not delta.text and not delta.token_ids:
            return None
        if delta.text:
            draft.texts.append(delta.text)
        draft.token_ids.extend(delta.token_ids)
        return Chunk(delta.text, tuple(delta.token_ids), delta.index, delta.position)

    def _draft(self, index: int) -> _Draft:
        return self._drafts.setdefault(index, _Draft())


def total_usage(choices: tuple[Choice, ...]) -> Usage:
    """Token counts of the ended choices together; they share one prompt."""
    ended = [c.finished.usage for c in choices if c.finished is not None]
    if not ended:
        return Usage(0, 0, 0)
    return Usage(
        prompt_tokens=ended[0].prompt_tokens,
        cached_tokens=ended[0].cached_tokens,
        completion_tokens=sum(u.completion_tokens for u in ended),
    )


def started_from(message: pb.Started) -> Started:
    """A Started of the wire."""
    return Started(
        request_id=message.request_id,
        model=message.model,
        replica=message.replica,
        prompt_tokens=message.prompt_tokens,
        cached_tokens=message.cached_tokens,
        seed=message.seed,
    )


def finished_from(message: pb.Finished) -> Finished:
    """A Finished of the wire."""
    return Finished(
        index=message.index,
        reason=_REASONS.get(message.reason, FinishReason.UNKNOWN),
        matched_string=message.matched_string,
        matched_token_id=message.matched_token_id if message.HasField("matched_token_id") else None,
        usage=Usage(
            prompt_tokens=message.usage.prompt_tokens,
            cached_tokens=message.usage.cached_tokens,
            completion_tokens=message.usage.completion_tokens,
        ),
        timing=Timing(
            queue=_seconds(message.timing.queue),
            prefill=_seconds(message.timing.prefill),
            decode=_seconds(message.timing.decode),
        ),
        approximate=message.approximate,
    )


def answer_from(message: pb.GenerateTextResponse) -> Answer:
    """A whole answer of the wire."""
    return Answer(
        started=started_from(message.started),
        choices=tuple(
            Choice(c.index, c.text, tuple(c.token_ids), finished_from(c.finished))
            for c in sorted(message.choices, key=lambda c: c.index)
        ),
    )


def _seconds(duration: Duration) -> float:
    return duration.ToNanoseconds() / 1e9
