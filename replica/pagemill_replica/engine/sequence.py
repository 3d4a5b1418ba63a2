"""One request as the engine sees it: its tokens, how many of them are computed, and where they lie."""

from __future__ import annotations

from enum import StrEnum

from pagemill_replica.engine.chain import Link
from pagemill_replica.engine.messages import EndReason, Stage, Submit, Timing
from pagemill_replica.engine.params import Sampling, Stop


class Place(StrEnum):
    """Which of the scheduler's lists holds a sequence."""

    WAITING = "waiting"
    RUNNING = "running"
    GONE = "gone"


class Sequence:
    """A live request.

    `computed` and `total` say all there is to say about progress: prefill, a chunk of it, decode and the recomputation
    after a preemption are all the difference between them.
    """

    __slots__ = (
        "_masked",
        "_replayed",
        "arrival",
        "blocks",
        "cached_tokens",
        "computed",
        "deadline",
        "first_scheduled_at",
        "first_token_at",
        "key",
        "limit",
        "links",
        "output_ids",
        "place",
        "preemptions",
        "priority",
        "prompt_ids",
        "registered",
        "salt",
        "sampling",
        "stop",
        "submitted_at",
        "token_ids",
        "traceparent",
    )

    def __init__(self, request: Submit, *, arrival: int, at: float, max_context: int) -> None:
        """`arrival` rises from request to request; `at` is the engine's monotonic clock."""
        self.key: int = request.key
        self.prompt_ids: list[int] = request.prompt_ids
        self.output_ids: list[int] = list(request.output_ids)
        self.token_ids: list[int] = request.prompt_ids + request.output_ids
        """Prompt and output, kept in one list so that a step slices it."""
        self.sampling: Sampling = request.sampling
        self.stop: Stop = request.stop
        self.priority: int = request.priority
        self.salt: bytes = request.salt
        self.traceparent: str = request.traceparent
        self.arrival: int = arrival
        self.limit: int = min(len(request.prompt_ids) + request.stop.max_tokens, max_context)
        """Most tokens that prompt and output can come to."""
        self.deadline: float | None = None if request.time_left is None else at + request.time_left

        self.place: Place = Place.WAITING
        self.computed: int = 0
        """Leading tokens whose keys and values are in the KV cache."""
        self.blocks: list[int] = []
        """Ids of the blocks that hold them, and those to come."""
        self.links: list[Link] = []
        """The prefix chain as far as it is known: the root, then one link for each full block."""
        self.registered: int = 0
        """Leading blocks that are named in the prefix cache, or found there to have an equal."""
        self.cached_tokens: int = 0
        self.preemptions: int = 0

        self.submitted_at: float = at
        self.first_scheduled_at: float | None = None
        self.first_token_at: float | None = None
        self._replayed = len(request.output_ids)
        self._masked: tuple[int, ...] = tuple(dict.fromkeys(request.stop.end_of_text_ids + request.stop.stop_token_ids))

    @property
    def total(self) -> int:
        """Tokens of prompt and output."""
        return len(self.token_ids)

    @property
    def pending(self) -> int:
        """Tokens to compute before the next one can be drawn; at least 1 while the sequence lives."""
        return len(self.token_ids) - self.computed

    @property
    def generated(self) -> int:
        """Output tokens drawn by this engine: those replayed from a continuation are not."""
        return len(self.output_ids) - self._replayed

    @property
    def rank(self) -> tuple[int, int]:
        """Sorts the most important first: by priority, then by arrival."""
        return (-self.priority, self.arrival)

    @property
    def stage(self) -> Stage:
        """How far it ever came; a preemption does not take it back."""
        if self.first_token_at is not None:
            return Stage.DECODE
        return Stage.QUEUE if self.first_scheduled_at is None else Stage.PREFILL

    @property
    def masked_token_ids(self) -> tuple[int, ...]:
        """Ids that may not be drawn next, because the output is shorter than min_tokens."""
        return self._masked if len(self.output_ids) < self.stop.min_tokens else ()

    def append(self, token_id: int, at: float) -> None:
        """Adds a drawn token."""
        self.output_ids.append(token_id)
        self.token_ids.append(token_id)
        if self.first_token_at is None:
            self.first_token_at = at

    def end_by_tokens(self) -> tuple[EndReason, int | None] | None:
        """Why the output as it stands is complete, with the token that ended it, or None where it goes on."""
        outputs = len(self.output_ids)
        if outputs > self.stop.min_tokens:
            last = self.output_ids[-1]
            if last in self.stop.end_of_text_ids:
                return EndReason.END_OF_TEXT, last
            if last in self.stop.stop_token_ids:
                return EndReason.STOP_TOKEN, last
        if outputs >= self.stop.max_tokens:
            return EndReason.MAX_TOKENS, None
        if len(self.token_ids) >= self.limit:
            return EndReason.CONTEXT_FULL, None
        return None

    def timing(self, at: float) -> Timing:
        """Where the time went, for a sequence that ends at `at`."""
        if self.first_scheduled_at is None:
            return Timing(queue=at - self.submitted_at)
        queue = self.first_scheduled_at - self.submitted_at
        if self.first_token_at is None:
            return Timing(queue=queue, prefill=at - self.first_scheduled_at)
        return Timing(
            queue=queue, prefill=self.first_token_at - self.first_scheduled_at, decode=at - self.first_token_at
        )
