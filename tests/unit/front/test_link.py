"""The link to the engine: charges, reports, refusals, loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pagemill_common.errors import StatusError
from pagemill_common.tokenisation import Detokeniser, ModelTokenizer
from pagemill_replica.engine.messages import Ended, EndReason, NewTokens, Stage, StepReport, Submit, Timing
from pagemill_replica.engine.params import Sampling, Stop
from pagemill_replica.front.ledger import Ledger
from pagemill_replica.front.link import NO_STATS, Charge, EngineLink
from pagemill_replica.front.live import LiveRequest
from pagemill_replica.front.output import OutputBuffer
from pagemill_replica.front.registry import CallName
from pagemill_replica.front.watch import WatchHub


class Bench:
    """A link with a ledger of 10 blocks."""

    def __init__(self, engine: Any, tokenizer: ModelTokenizer, clock: Callable[[], float]) -> None:
        self.engine = engine
        self.tokenizer = tokenizer
        self.clock = clock
        self.hub = WatchHub()
        self.nudges = 0
        ledger = Ledger(10, clock=clock, on_seen=self.hub.seen)
        self.link = EngineLink(
            engine, ledger, self.hub, block_size=16, clock=clock, on_big_change=self._nudge, on_step=lambda _: None
        )

    def _nudge(self) -> None:
        self.nudges += 1

    def admit(self, key: int, need: int = 2, call: str = "", attempt: int = 1, reservation: str = "") -> LiveRequest:
        live = LiveRequest(
            CallName(f"r{key}", call, attempt),
            key,
            detokeniser=Detokeniser(self.tokenizer),
            output=OutputBuffer(1000),
            output_limit=1000,
            replayed_tokens=0,
            abort=self.link.abort,
            clock=self.clock,
        )
        submit = Submit(key, [1], Sampling(), Stop(4))
        self.link.admit(live, submit, Charge(call or f"direct:{key}", attempt, need, reservation))
        return live

    def report(self, **fields: Any) -> None:
        self.link.on_report(StepReport(**({"tokens": [], "ended": [], "stats": NO_STATS} | fields)))


@pytest.fixture
def bench(engine: Any, tokenizer: ModelTokenizer, clock: Callable[[], float]) -> Bench:
    return Bench(engine, tokenizer, clock)


def ended(key: int, reason: EndReason = EndReason.MAX_TOKENS) -> Ended:
    return Ended(key, reason, Stage.DECODE, Timing())


def test_charge_lasts_from_acceptance_until_the_engine_has_let_go(bench: Bench) -> None:
    live = bench.admit(1, need=3)
    assert [m.key for m in bench.engine.submitted] == [1]
    assert bench.link.ledger.committed == 3
    live.leave()
    assert bench.engine.aborted == [1]
    assert bench.link.ledger.committed == 3, "an abort on its way frees nothing yet"
    bench.report(ended=[ended(1, EndReason.ABORTED)])
    assert (bench.link.ledger.committed, bench.link.live) == (0, 0)


def test_what_does_not_fit_is_refused_and_never_reaches_the_engine(bench: Bench) -> None:
    bench.admit(1, need=8)
    with pytest.raises(StatusError) as caught:
        bench.admit(2, need=3)
    assert caught.value.reason == "REPLICA_FULL"
    assert [m.key for m in bench.engine.submitted] == [1]
    bench.report(ended=[ended(1)])
    bench.admit(3, need=3)


def test_what_could_never_fit_is_out_of_range(bench: Bench) -> None:
    with pytest.raises(StatusError) as caught:
        bench.admit(1, need=11)
    assert caught.value.reason == "TOO_LONG"


def test_blocks_held_beyond_the_need_are_charged(bench: Bench) -> None:
    bench.admit(1, need=2)
    bench.report(held_blocks={1: 9, 99: 5})
    assert bench.link.ledger.committed == 9
    with pytest.raises(StatusError):
        bench.admit(2, need=2)


def test_higher_attempt_ends_the_lower_in_the_engine(bench: Bench) -> None:
    bench.admit(1, call="c", attempt=1)
    bench.admit(2, call="c", attempt=2)
    assert bench.engine.aborted == [1]
    with pytest.raises(StatusError) as caught:
        bench.admit(3, call="c", attempt=1)
    assert caught.value.reason == "SUPERSEDED"


async def test_fault_in_one_requests_text_ends_that_one_alone(bench: Bench) -> None:
    bad, good = bench.admit(1), bench.admit(2)

    def boom(*_: object) -> None:
        raise RuntimeError("no text")

    bad._detokeniser = type("Broken", (), {"push": boom})()  # type: ignore[assignment]
    bench.report(tokens=[NewTokens(1, [0], 0), NewTokens(2, [1], 0)])
    with pytest.raises(RuntimeError, match="no text"):
        await bad.output.take()
    piece = await good.output.take()
    assert piece is not None
    assert piece.text == "b"
    assert bench.engine.aborted == [1]


async def test_lost_engine_ends_all_streams_and_frees_all_charges(bench: Bench) -> None:
    lives = [bench.admit(1), bench.admit(2)]
    bench.link.on_lost("ended by SIGKILL")
    for live in lives:
        with pytest.raises(StatusError) as caught:
            await live.output.take()
        assert caught.value.reason == "REPLICA_LOST"
    assert (bench.link.ledger.committed, bench.link.live) == (0, 0)
    with pytest.raises(StatusError) as caught:
        bench.admit(3)
    assert caught.value.reason == "REPLICA_LOST"


def test_tokens_of_a_request_that_has_gone_are_ignored(bench: Bench) -> None:
    bench.report(tokens=[NewTokens(5, [0], 0)], ended=[ended(5)])


def test_big_changes_hasten_the_heartbeat(bench: Bench) -> None:
    bench.admit(1, need=2)
    assert bench.nudges == 1
    bench.report()
    assert bench.nudges == 1
    bench.report(ended=[ended(1)])
    assert bench.nudges == 2


def test_reservation_reaches_watchers_when_accepted_refused_and_ended(bench: Bench) -> None:
    with bench.hub.watching("r") as watcher:
        bench.admit(1, need=9, reservation="a")
        assert watcher.take_seen() == ["a"]
        with pytest.raises(StatusError):
            bench.admit(2, need=9, reservation="b")
        assert watcher.take_seen() == ["b"]
        bench.report(ended=[ended(1)])
        assert watcher.take_seen() == ["a"]
