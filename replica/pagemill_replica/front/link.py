"""The front's side of the engine: who lives there, what is charged, what each step brought."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from pagemill_common import errors, logs
from pagemill_replica.engine.messages import Ended, EngineStats, StepReport, Submit
from pagemill_replica.engine_process.client import EngineGoneError
from pagemill_replica.front.ledger import Accepted, Ledger, LedgerRefusal
from pagemill_replica.front.live import LiveRequest
from pagemill_replica.front.throughput import Throughput
from pagemill_replica.front.watch import WatchHub

_log = logs.get("pagemill.replica.link")

NO_STATS = EngineStats(
    steps=0,
    waiting=0,
    running=0,
    used_blocks=0,
    cached_blocks=0,
    preemptions=0,
    prompt_tokens=0,
    hit_tokens=0,
    generated_tokens=0,
    step_seconds=0.0,
)
_BIG_CHANGE = 1 / 16
"""Routers and Redis hear at once of a change of committed blocks by this share of the capacity."""
_FULL_RETRY_SECONDS = 1.0


class Engine(Protocol):
    """What the link needs of an EngineClient."""

    def submit(self, m: Submit) -> None:
        """Hands the engine a request. Raises EngineGoneError."""
        ...

    def abort(self, key: int) -> None:
        """Tells the engine to end a request."""
        ...


@dataclass(frozen=True, slots=True)
class Charge:
    """What a request is charged in the ledger."""

    call_id: str
    attempt: int
    need: int
    reservation_id: str = ""


class EngineLink:
    """Owns the live requests by engine key and applies step reports to them, the ledger and the watchers."""

    def __init__(
        self,
        engine: Engine,
        ledger: Ledger,
        hub: WatchHub,
        *,
        block_size: int,
        clock: Callable[[], float],
        on_big_change: Callable[[], None],
        on_step: Callable[[StepReport], None],
    ) -> None:
        """`on_big_change` hastens the next heartbeat; `on_step` hears of every report, for metrics."""
        self.ledger = ledger
        self.block_size = block_size
        self.stats = NO_STATS
        self.throughput = Throughput(5.0, clock)
        self._engine = engine
        self._hub = hub
        self._on_big_change = on_big_change
        self._on_step = on_step
        self._live: dict[int, LiveRequest] = {}
        self._told_committed = 0
        self._lost = ""

    @property
    def live(self) -> int:
        """Requests that the engine has not yet given back."""
        return len(self._live)

    @property
    def lost(self) -> str:
        """Why the engine is gone; empty while it lives."""
        return self._lost

    def admit(self, live: LiveRequest, submit: Submit, charge: Charge) -> None:
        """Charges the request and hands it to the engine in one turn of the loop.

        Raises the status of the refusal; a reservation counts as seen either way.
        """
        if self._lost:
            raise errors.replica_lost([0], self._lost)
        reply = self.ledger.accept(charge.call_id, charge.attempt, live.key, charge.need, charge.reservation_id)
        if not isinstance(reply, Accepted):
            raise self._refusal(reply.reason, charge, reply.free_blocks)
        if reply.again:
            raise errors.superseded(charge.attempt)
        # An idle engine begins at once; otherwise the first blocks that it holds tell.
        if not self._live:
            live.schedule()
        self._live[live.key] = live
        for key in reply.supersedes:
            if key in self._live:
                self._live[key].supersede(charge.attempt)
        self._hand_over(live, submit)
        self._tell_if_big()

    def abort(self, key: int) -> None:
        """Tells the engine to end a request; its charge stays until the engine says that it has."""
        if key in self._live and not self._lost:
            self._engine.abort(key)

    def on_report(self, report: StepReport) -> None:
        """Applies one step. A fault in one request's text ends that request alone."""
        self.stats = report.stats
        self.ledger.update_held(report.held_blocks)
        for key in report.held_blocks.keys() & self._live.keys():
            self._live[key].schedule()
        ended = {end.key: end for end in report.ended}
        for new in report.tokens:
            live = self._live.get(new.key)
            if live is not None:
                self.throughput.add(len(new.token_ids))
                with self._guard(live):
                    live.on_tokens(new.token_ids, new.cached_tokens, ended.get(new.key))
        for end in report.ended:
            self._end(end)
        self._hub.kv_changed(report.stored, report.removed)
        self._on_step(report)
        self._tell_if_big()

    def on_lost(self, message: str) -> None:
        """The engine process has died: every stream ends at once."""
        self._lost = message or "the engine process died"
        live, self._live = self._live, {}
        self.ledger.end_all()
        for request in live.values():
            request.on_engine_lost(self._lost)
        self._hub.wake()

    def fail_all(self, failure: Callable[[], Exception]) -> int:
        """Ends every stream; returns how many there were."""
        streams = [live for live in self._live.values() if not live.output.closed]
        for live in streams:
            live.fail(failure())
        return len(streams)

    def _hand_over(self, live: LiveRequest, submit: Submit) -> None:
        try:
            self._engine.submit(submit)
        except Exception as failure:
            # The engine never got it and will never give it back.
            del self._live[live.key]
            self.ledger.end(live.key)
            if isinstance(failure, EngineGoneError):
                raise errors.replica_lost([0], str(failure)) from failure
            raise

    def _end(self, end: Ended) -> None:
        live = self._live.pop(end.key, None)
        self.ledger.end(end.key)
        if live is not None:
            with self._guard(live):
                live.on_ended(end)

    @contextlib.contextmanager
    def _guard(self, live: LiveRequest) -> Iterator[None]:
        try:
            yield
        except Exception as failure:
            live.fail(failure)

    def _tell_if_big(self) -> None:
        self._hub.wake()
        if abs(self.ledger.committed - self._told_committed) >= max(1, self.ledger.capacity * _BIG_CHANGE):
            self._told_committed = self.ledger.committed
            self._on_big_change()

    def _refusal(self, reason: LedgerRefusal, charge: Charge, free: int) -> errors.StatusError:
        match reason:
            case LedgerRefusal.FULL:
                text = f"{charge.need} KV blocks are needed and {max(free, 0)} of {self.ledger.capacity} are free"
                return errors.replica_full(_FULL_RETRY_SECONDS, text)
            case LedgerRefusal.TOO_LARGE:
                text = f"needs {charge.need} KV blocks; this replica has {self.ledger.capacity}"
                return errors.out_of_range("stop.max_tokens", text)
            case LedgerRefusal.CLOSED:
                return errors.draining(1.0)
            case _:
                return errors.superseded(charge.attempt)
