"""The engine's core: takes requests, runs steps, says what came of them.

One step, in this order:

    messages taken (submit, abort)  ->  deadlines  ->  schedule  ->  execute  ->  apply tokens  ->  report

It is driven from outside and owns neither thread nor clock nor transport.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from pagemill_replica.engine.block_pool import BlockPool
from pagemill_replica.engine.chain import Hasher
from pagemill_replica.engine.deadlines import Deadlines
from pagemill_replica.engine.kv_manager import KvManager
from pagemill_replica.engine.limits import EngineLimits, unknown_ids
from pagemill_replica.engine.messages import Ended, EndReason, EngineStats, NewTokens, Stage, StepReport, Submit, Timing
from pagemill_replica.engine.plan import Runner, ScheduledSequence, StepPlan
from pagemill_replica.engine.scheduler import Decision, Scheduler, Share
from pagemill_replica.engine.sequence import Sequence

_log = logging.getLogger("pagemill.engine")


@dataclass(slots=True)
class _Totals:
    steps: int = 0
    prompt_tokens: int = 0
    hit_tokens: int = 0
    generated_tokens: int = 0
    step_seconds: float = 0.0


class EngineCore:
    """Runs requests on a runner, one step at a time."""

    def __init__(self, runner: Runner, hasher: Hasher, limits: EngineLimits, clock: Callable[[], float]) -> None:
        """`clock` gives monotonic seconds."""
        self._runner = runner
        self._clock = clock
        self._limits = limits
        self._kv = KvManager(BlockPool(runner.num_blocks), hasher, runner.block_size)
        self._scheduler = Scheduler(self._kv, limits)
        self._sequences: dict[int, Sequence] = {}
        self._deadlines = Deadlines()
        self._ended: list[Ended] = []
        self._tokens: list[NewTokens] = []
        self._arrivals = 0
        self._totals = _Totals()
        self.failed_steps = 0
        """Steps in a row, up to the last one, that the runner failed."""

    @property
    def has_work(self) -> bool:
        """Whether a step would bring anything."""
        return bool(self._sequences or self._ended)

    @property
    def live(self) -> int:
        """Requests that wait or run."""
        return len(self._sequences)

    @property
    def max_request_tokens(self) -> int:
        """The largest prompt and output together: the smaller of context and pool."""
        return min(self._limits.max_context_tokens, self._kv.capacity_tokens)

    def submit(self, request: Submit) -> None:
        """Takes a request, or ends it at once where it can never run or has already ended by its output.

        Raises ValueError for the key of a live request, which is left untouched.
        """
        if request.key in self._sequences:
            raise ValueError(f"key {request.key} is live")
        now = self._clock()
        self._arrivals += 1
        sequence = Sequence(request, arrival=self._arrivals, at=now, max_context=self._limits.max_context_tokens)
        unfit = self._scheduler.unfit(sequence) or unknown_ids(request, self._limits.vocabulary_size)
        if unfit:
            self._report_end(sequence, EndReason.REJECTED, now, message=unfit)
            return
        end = sequence.end_by_tokens() if sequence.output_ids else None
        if end is not None:
            self._report_end(sequence, end[0], now, matched=end[1])
            return
        self._sequences[request.key] = sequence
        self._scheduler.add(sequence)
        if sequence.deadline is not None:
            self._deadlines.add(sequence.key, sequence.deadline)

    def refuse(self, key: int, message: str) -> None:
        """Ends a request that could not even be read, which is our fault. No effect on a live one of that key."""
        if key not in self._sequences:
            self._ended.append(Ended(key, EndReason.FAILED, Stage.QUEUE, Timing(), message=message))

    def abort(self, key: int) -> None:
        """Ends a request, whatever it is doing, and takes its blocks back. No effect on one that has ended."""
        sequence = self._sequences.get(key)
        if sequence is not None:
            self._end(sequence, EndReason.ABORTED, self._clock())

    def abort_all(self) -> None:
        """Ends all requests as ABORTED."""
        for key in list(self._sequences):
            self.abort(key)

    def step(self) -> StepReport:
        """Runs one step and reports it, with what submit and abort brought about since the last one."""
        started = self._clock()
        self._expire(started)
        decision = self._scheduler.schedule()
        for sequence in decision.rejected:
            self._drop(sequence, EndReason.REJECTED, started, message="no room in an idle KV cache")
        if decision.shares:
            self._note_first_scheduling(decision, started)
            self._totals.steps += 1
            self._execute(decision.shares)
        return self._report(started)

    def check(self) -> None:
        """Compares all books of the KV cache with the live requests. Raises AccountingError on any difference."""
        self._kv.check(self._sequences.values())

    @property
    def cached_hashes(self) -> list[bytes]:
        """Hashes of all blocks in the prefix cache."""
        return self._kv.pool.hashes

    def _expire(self, now: float) -> None:
        for key in self._deadlines.expired(now):
            sequence = self._sequences.get(key)
            if sequence is not None:
                self._end(sequence, EndReason.TIMEOUT, now)
        self._deadlines.prune(self._sequences, len(self._sequences))

    def _note_first_scheduling(self, decision: Decision, now: float) -> None:
        for sequence in decision.admitted:
            if sequence.first_scheduled_at is None:
                sequence.first_scheduled_at = now
                sequence.cached_tokens = min(sequence.computed, len(sequence.prompt_ids))
                self._totals.prompt_tokens += len(sequence.prompt_ids)
                self._totals.hit_tokens += sequence.cached_tokens

    def _execute(self, shares: list[Share]) -> None:
        try:
            drawn = self._runner.execute(StepPlan([_scheduled(share) for share in shares]))
            _check_drawn(shares, drawn)
        except Exception as error:
            # Blocks computed in earlier steps are sound; those of this step were never named in the cache.
            _log.exception("a step of %d sequences failed", len(shares))
            self.failed_steps += 1
            now = self._clock()
            for share in shares:
                self._end(share.sequence, EndReason.FAILED, now, message=f"{type(error).__name__}: {error}")
            return
        self.failed_steps = 0
        now = self._clock()
        for share, token_id in zip(shares, drawn, strict=True):
            self._kv.advance(share.sequence, share.count)
            if token_id is not None:
                self._apply(share.sequence, token_id, now)

    def _apply(self, sequence: Sequence, token_id: int, now: float) -> None:
        sequence.append(token_id, now)
        self._tokens.append(NewTokens(sequence.key, [token_id], sequence.cached_tokens))
        self._totals.generated_tokens += 1
        end = sequence.end_by_tokens()
        if end is not None:
            self._end(sequence, end[0], now, matched=end[1])

    def _end(
        self, sequence: Sequence, reason: EndReason, now: float, *, matched: int | None = None, message: str = ""
    ) -> None:
        self._scheduler.remove(sequence)
        self._drop(sequence, reason, now, matched=matched, message=message)

    def _drop(
        self, sequence: Sequence, reason: EndReason, now: float, *, matched: int | None = None, message: str = ""
    ) -> None:
        del self._sequences[sequence.key]
        self._report_end(sequence, reason, now, matched=matched, message=message)

    def _report_end(
        self, sequence: Sequence, reason: EndReason, now: float, *, matched: int | None = None, message: str = ""
    ) -> None:
        self._ended.append(
            Ended(
                key=sequence.key,
                reason=reason,
                stage=sequence.stage,
                timing=sequence.timing(now),
                matched_token_id=matched,
                preemptions=sequence.preemptions,
                message=message,
            )
        )

    def _report(self, started: float) -> StepReport:
        totals, pool = self._totals, self._kv.pool
        stored, removed = pool.take_events()
        tokens, self._tokens = self._tokens, []
        ended, self._ended = self._ended, []
        return StepReport(
            tokens=tokens,
            ended=ended,
            stats=EngineStats(
                steps=totals.steps,
                waiting=self._scheduler.waiting,
                running=self._scheduler.running,
                used_blocks=pool.used_count,
                cached_blocks=pool.idle_cached_count,
                preemptions=self._scheduler.preemptions,
                prompt_tokens=totals.prompt_tokens,
                hit_tokens=totals.hit_tokens,
                generated_tokens=totals.generated_tokens,
                step_seconds=self._clock() - started,
            ),
            held_blocks=self._kv.take_held_changes(),
            stored=stored,
            removed=removed,
        )


def _scheduled(share: Share) -> ScheduledSequence:
    sequence, count = share.sequence, share.count
    start = sequence.computed
    return ScheduledSequence(
        key=sequence.key,
        token_ids=sequence.token_ids[start : start + count],
        start=start,
        block_table=sequence.blocks,
        samples=count == sequence.pending,
        sampling=sequence.sampling,
        prompt_ids=sequence.prompt_ids,
        output_ids=sequence.output_ids,
        masked_token_ids=sequence.masked_token_ids,
    )


def _check_drawn(shares: list[Share], drawn: list[int | None]) -> None:
    """Raises RuntimeError where the runner's answer does not match the plan."""
    if len(drawn) != len(shares):
        raise RuntimeError(f"the runner answered for {len(drawn)} of {len(shares)} sequences")
    for share, token_id in zip(shares, drawn, strict=True):
        if (token_id is not None) != (share.count == share.sequence.pending):
            raise RuntimeError(f"the runner drew {token_id} for request {share.sequence.key} against the plan")
