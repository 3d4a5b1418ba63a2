"""Decides what the next step computes.

There are no phases. Each sequence has `pending` tokens to compute, and a step spends one token budget on them: running
sequences first, then waiting ones unless a running one had to give its blocks back.

Two rules keep it fair and finite:

- Running sequences are served by importance (priority, then arrival), and each gets at least one token: a long prompt
  takes only what is left, so that no running stream waits for more than one budget.
- Whoever lacks a block takes it from the least important running sequence, itself included. That one goes back to the
  front of those that wait with its priority. It is admitted again only with a headroom of idle blocks that doubles with
  each of its preemptions, up to all that could still be needed: among requests of one priority it is preempted at most
  2 + log2(growth of the more important ones / watermark) times.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field

from pagemill_replica.engine.chain import Link
from pagemill_replica.engine.kv_manager import Fit, KvManager
from pagemill_replica.engine.limits import EngineLimits
from pagemill_replica.engine.sequence import Place, Sequence


@dataclass(frozen=True, slots=True)
class Share:
    """What one sequence computes in a step."""

    sequence: Sequence
    count: int


@dataclass(slots=True)
class Decision:
    """What a step does."""

    shares: list[Share] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)
    admitted: list[Sequence] = field(default_factory=list)
    rejected: list[Sequence] = field(default_factory=list)
    """Sequences that nothing runs beside and that still find no room. Empty unless the engine has a defect."""


def _least_important_first(sequence: Sequence) -> tuple[int, int]:
    return (sequence.priority, -sequence.arrival)


def _most_important_first(sequence: Sequence) -> tuple[int, int]:
    return sequence.rank


class Scheduler:
    """Owns the lists of waiting and running sequences."""

    def __init__(self, kv: KvManager, limits: EngineLimits) -> None:
        self._kv = kv
        self._limits = limits
        self._watermark = max(1, int(kv.pool.num_blocks * limits.watermark))
        self._waiting: list[Sequence] = []
        """Most important last, so that it is popped at no cost."""
        self._running: list[Sequence] = []
        """Most important first."""
        self._blocked: Sequence | None = None
        """The head of the waiting ones, which found no room; nothing has been given back since."""
        self._blocked_on: Link | None = None
        """The first block it did not find in the prefix cache."""
        self.preemptions = 0

    @property
    def waiting(self) -> int:
        """Sequences that wait."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Sequences that run."""
        return len(self._running)

    def unfit(self, sequence: Sequence) -> str:
        """Why a sequence could never run, even alone; empty where it can."""
        if not sequence.prompt_ids:
            return "the prompt is empty"
        if sequence.stop.max_tokens < 1:
            return "max_tokens must be at least 1"
        if sequence.total >= sequence.limit and not sequence.output_ids:
            return f"{sequence.total} prompt tokens leave no room in a context of {self._limits.max_context_tokens}"
        if sequence.limit > self._kv.capacity_tokens:
            return f"{sequence.limit} tokens of prompt and output do not fit a KV cache of {self._kv.capacity_tokens}"
        return ""

    def add(self, sequence: Sequence) -> None:
        """Takes a sequence among the waiting."""
        insort(self._waiting, sequence, key=_least_important_first)

    def remove(self, sequence: Sequence) -> None:
        """Takes a sequence out, wherever it is, and its blocks back."""
        if sequence.place is Place.WAITING:
            at = bisect_left(self._waiting, _least_important_first(sequence), key=_least_important_first)
            assert self._waiting[at] is sequence
            del self._waiting[at]
        elif sequence.place is Place.RUNNING:
            at = bisect_left(self._running, sequence.rank, key=_most_important_first)
            assert self._running[at] is sequence
            del self._running[at]
        sequence.place = Place.GONE
        self._kv.release(sequence)
        self._kv.forget(sequence.key)
        self._blocked = None

    def schedule(self) -> Decision:
        """Spends one token budget. Never empty while there are sequences."""
        decision = Decision()
        budget = self._serve_running(decision)
        if not decision.preempted:
            self._admit_waiting(decision, budget)
        return decision

    def _serve_running(self, decision: Decision) -> int:
        budget = self._limits.token_budget
        running = self._running
        index = 0
        while index < len(running):
            sequence = running[index]
            # Everyone after this one keeps a token.
            count = min(sequence.pending, budget - (len(running) - index - 1))
            if self._make_room(sequence, count, decision):
                decision.shares.append(Share(sequence, count))
                budget -= count
                index += 1
        return budget

    def _make_room(self, sequence: Sequence, count: int, decision: Decision) -> bool:
        """Finds blocks for `count` more tokens; False where the sequence itself was the one to give way."""
        while not self._kv.grow(sequence, sequence.computed + count):
            victim = self._running.pop()
            self._preempt(victim)
            decision.preempted.append(victim)
            if victim is sequence:
                return False
        return True

    def _preempt(self, victim: Sequence) -> None:
        self._kv.release(victim)
        victim.preemptions += 1
        victim.place = Place.WAITING
        self.preemptions += 1
        self._blocked = None
        self.add(victim)

    def _admit_waiting(self, decision: Decision, budget: int) -> None:
        while self._waiting and budget > 0 and len(self._running) < self._limits.max_running:
            sequence = self._waiting[-1]
            if self._still_blocked(sequence):
                return
            fit = self._kv.fit(sequence)
            if not self._has_room(sequence, fit):
                if self._running:
                    self._blocked, self._blocked_on = sequence, fit.missing
                    return
                # Alone in the pool and still no room: the books are wrong. Whoever waits behind must not.
                self.remove(sequence)
                decision.rejected.append(sequence)
                continue
            self._waiting.pop()
            self._kv.place(sequence, fit)
            sequence.place = Place.RUNNING
            insort(self._running, sequence, key=_most_important_first)
            count = min(sequence.pending, budget)
            budget -= count
            decision.admitted.append(sequence)
            decision.shares.append(Share(sequence, count))

    def _still_blocked(self, sequence: Sequence) -> bool:
        """Whether looking for room again is sure to be in vain, told in constant time."""
        if sequence is not self._blocked or not self._running:
            return False
        return self._blocked_on is None or self._kv.pool.find(self._blocked_on) is None

    def _has_room(self, sequence: Sequence, fit: Fit) -> bool:
        spare = self._kv.pool.free_count - fit.need
        if spare < 0:
            return False
        # Past 2^31 watermarks the growth below is the smaller bound anyway.
        headroom = self._watermark << min(sequence.preemptions, 31)
        return not self._running or spare >= headroom or spare >= self._growth(sequence)

    def _growth(self, sequence: Sequence) -> int:
        """Blocks that the running sequences and this one could still come to need."""
        growth = self._kv.blocks_for(sequence.limit) - self._kv.blocks_for(sequence.total)
        for other in self._running:
            growth += self._kv.blocks_for(other.limit) - len(other.blocks)
        return growth
