"""What front and engine processes say to each other: plain values, encoded at the process edge.

A `key` is drawn by the front, one for each attempt of each choice, and never used twice in the life of an engine.
Times are seconds; durations are measured with the engine's monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from pagemill_replica.engine.params import Sampling, Stop


class EndReason(StrEnum):
    """Why the engine ended a request."""

    END_OF_TEXT = "end_of_text"
    STOP_TOKEN = "stop_token"
    MAX_TOKENS = "max_tokens"
    CONTEXT_FULL = "context_full"
    ABORTED = "aborted"
    TIMEOUT = "timeout"
    REJECTED = "rejected"
    FAILED = "failed"


class Stage(StrEnum):
    """Where a request is in its life, as DEADLINE_EXCEEDED reports it."""

    QUEUE = "queue"
    PREFILL = "prefill"
    DECODE = "decode"


# Front to engine.


@dataclass(frozen=True, slots=True)
class Submit:
    """A request for the engine."""

    key: int
    prompt_ids: list[int]
    sampling: Sampling
    stop: Stop
    output_ids: list[int] = field(default_factory=list)
    """Output delivered by earlier attempts: replayed, not generated again, and not reported again."""
    priority: int = 0
    """Larger is more urgent."""
    time_left: float | None = None
    """Seconds until the engine ends it with TIMEOUT; None: never."""
    salt: bytes = b""
    """Keeps cached prefixes apart."""
    traceparent: str = ""
    """W3C trace context for the engine's spans."""


@dataclass(frozen=True, slots=True)
class Abort:
    """End a request now; answered by its Ended unless it has ended already."""

    key: int


@dataclass(frozen=True, slots=True)
class Shutdown:
    """End all requests as ABORTED and leave."""


# Engine to front.


@dataclass(frozen=True, slots=True)
class Loading:
    """Progress of start-up, for status displays."""

    stage: str
    fraction: float


@dataclass(frozen=True, slots=True)
class Ready:
    """The engine is warm and takes requests."""

    pid: int
    num_blocks: int
    block_size: int
    max_context_tokens: int
    max_request_tokens: int
    """The largest prompt and output together: the smaller of context and pool."""
    kv_bytes: int
    weight_bytes: int
    dtype: str
    device: str
    deterministic: bool
    warmup_seconds: float


@dataclass(frozen=True, slots=True)
class NewTokens:
    """Tokens drawn for one request in one step."""

    key: int
    token_ids: list[int]
    cached_tokens: int
    """Prompt tokens found in the prefix cache at first scheduling."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Where a request's time went, seconds; zero for stages it never reached."""

    queue: float = 0.0
    prefill: float = 0.0
    decode: float = 0.0


@dataclass(frozen=True, slots=True)
class Ended:
    """A request is gone from the engine and its blocks are back."""

    key: int
    reason: EndReason
    stage: Stage
    timing: Timing
    matched_token_id: int | None = None
    preemptions: int = 0
    message: str = ""
    """For REJECTED and FAILED: what is wrong."""


@dataclass(frozen=True, slots=True)
class EngineStats:
    """What the engine holds after a step."""

    steps: int
    waiting: int
    running: int
    used_blocks: int
    """Blocks referenced by live requests, shared ones once."""
    cached_blocks: int
    """Idle blocks that still hold a cached prefix."""
    preemptions: int
    prompt_tokens: int
    """Prompt tokens asked for so far, for the hit rate."""
    hit_tokens: int
    """Of these, found in the prefix cache."""
    generated_tokens: int
    step_seconds: float


@dataclass(frozen=True, slots=True)
class StepReport:
    """All that one step brought, in one message."""

    tokens: list[NewTokens]
    ended: list[Ended]
    stats: EngineStats
    held_blocks: dict[int, int] = field(default_factory=dict)
    """Key to blocks held, for keys where the number changed."""
    stored: list[bytes] = field(default_factory=list)
    """Hashes of blocks that entered the prefix cache."""
    removed: list[bytes] = field(default_factory=list)
    """Hashes of blocks that left it."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The engine cannot go on; it leaves after this message."""

    message: str
    flag: str = ""
    """The flag to change, where a setting is at fault; `message` names it too."""


ToEngine = Submit | Abort | Shutdown
FromEngine = Loading | Ready | StepReport | Failed
