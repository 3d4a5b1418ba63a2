"""The replica's book: what it takes, what it refuses, and what it remembers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagemill_replica.front.ledger import Accepted, Ledger, LedgerRefusal, RefusedHere


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(clock: Clock) -> Ledger:
    return Ledger(100, clock=clock)


def refusal(outcome: Accepted | RefusedHere) -> LedgerRefusal:
    assert isinstance(outcome, RefusedHere)
    return outcome.reason


def test_a_request_is_charged_from_acceptance_to_end(ledger: Ledger) -> None:
    assert ledger.accept("a", 1, 1, 30) == Accepted(1)
    assert (ledger.committed, ledger.free, ledger.live) == (30, 70, 1)
    assert ledger.end(1)
    assert not ledger.end(1)
    assert (ledger.committed, ledger.live) == (0, 0)


def test_what_does_not_fit_is_refused_and_not_charged(ledger: Ledger) -> None:
    ledger.accept("a", 1, 1, 70)
    assert ledger.accept("b", 1, 2, 31) == RefusedHere(LedgerRefusal.FULL, 30)
    assert refusal(ledger.accept("c", 1, 3, 101)) is LedgerRefusal.TOO_LARGE
    assert ledger.committed == 70
    assert isinstance(ledger.accept("b", 1, 2, 30), Accepted)


def test_the_charge_is_the_larger_of_held_and_admitted(ledger: Ledger) -> None:
    ledger.accept("a", 1, 1, 30)
    ledger.update_held({1: 20, 99: 5})
    assert ledger.committed == 30
    ledger.update_held({1: 45})
    assert ledger.committed == 45
    ledger.update_held({1: 0})
    assert ledger.committed == 30
    ledger.update_held({1: 45})
    ledger.end(1)
    assert ledger.committed == 0


def test_output_that_outgrew_its_admission_keeps_others_out(ledger: Ledger) -> None:
    ledger.accept("a", 1, 1, 50)
    ledger.accept("b", 1, 2, 50)
    ledger.update_held({1: 60})
    assert ledger.free == -10
    assert refusal(ledger.accept("c", 1, 3, 1)) is LedgerRefusal.FULL


def test_the_same_attempt_twice_is_charged_once(ledger: Ledger) -> None:
    ledger.accept("a", 1, 1, 60, "r")
    assert ledger.accept("a", 1, 2, 60, "r") == Accepted(1, again=True)
    assert ledger.committed == 60


def test_an_attempt_that_has_ended_does_not_run_again(ledger: Ledger) -> None:
    ledger.accept("a", 1, 1, 60)
    ledger.end(1)
    assert refusal(ledger.accept("a", 1, 2, 60)) is LedgerRefusal.ENDED


def test_a_refused_attempt_may_come_again(ledger: Ledger) -> None:
    ledger.accept("a", 1, 1, 60)
    assert refusal(ledger.accept("b", 1, 2, 60)) is LedgerRefusal.FULL
    ledger.end(1)
    assert isinstance(ledger.accept("b", 1, 2, 60), Accepted)


def test_a_higher_attempt_supersedes_and_the_lower_stays_charged_until_its_end(ledger: Ledger) -> None:
    ledger.accept("a", 1, 1, 40)
    assert ledger.accept("a", 2, 2, 40) == Accepted(2, supersedes=(1,))
    assert ledger.committed == 80
    assert refusal(ledger.accept("a", 1, 3, 1)) is LedgerRefusal.SUPERSEDED
    ledger.end(1)
    assert ledger.committed == 40


def test_a_closed_ledger_takes_nothing_and_still_knows_what_it_took(ledger: Ledger) -> None:
    ledger.accept("a", 1, 1, 40)
    ledger.close()
    assert refusal(ledger.accept("b", 1, 2, 1)) is LedgerRefusal.CLOSED
    assert ledger.accept("a", 1, 3, 40) == Accepted(1, again=True)


def test_ids_are_reported_until_acknowledged(ledger: Ledger) -> None:
    ledger.accept("a", 1, 1, 90, "accepted")
    ledger.accept("b", 1, 2, 90, "refused")
    ledger.refuse("wrong epoch")
    ledger.accept("c", 1, 3, 1)
    assert ledger.seen() == ledger.seen() == ("accepted", "refused", "wrong epoch")
    ledger.acknowledge(("accepted", "refused"))
    assert ledger.seen() == ("wrong epoch",)
    ledger.end(1)
    assert ledger.seen() == ("wrong epoch", "accepted")
    assert ledger.seen(limit=1) == ("wrong epoch",)


def test_ids_are_forgotten_when_their_reservation_must_have_expired(ledger: Ledger, clock: Clock) -> None:
    ledger.refuse("old")
    clock.now = 29
    ledger.refuse("young")
    ledger.refuse("old")
    clock.now = 31
    assert ledger.seen() == ("young", "old")
    clock.now = 59
    assert ledger.seen() == ()


def test_watchers_hear_of_each_id(clock: Clock) -> None:
    heard: list[str] = []
    ledger = Ledger(10, clock=clock, on_seen=heard.append)
    ledger.accept("a", 1, 1, 5, "x")
    ledger.accept("b", 1, 2, 9, "y")
    ledger.end(1)
    assert heard == ["x", "y", "x"]


def test_memory_of_calls_is_bounded_and_spares_the_live(clock: Clock) -> None:
    ledger = Ledger(10, clock=clock, remembered_calls=2)
    ledger.accept("a", 1, 1, 1)
    for i in range(5):
        ledger.accept(f"b{i}", 1, 10 + i, 1)
        ledger.end(10 + i)
    assert ledger.accept("a", 1, 2, 1) == Accepted(1, again=True)
    assert ledger.accept("a", 2, 3, 1) == Accepted(3, supersedes=(1,))
    assert len(ledger._attempts) == 2


def test_a_lost_engine_holds_nothing(ledger: Ledger) -> None:
    for i in range(3):
        ledger.accept(f"a{i}", 1, i, 10, f"r{i}")
    ledger.end_all()
    assert (ledger.committed, ledger.live) == (0, 0)


@pytest.mark.parametrize("need", [0, -1])
def test_a_need_is_at_least_one_block(ledger: Ledger, need: int) -> None:
    with pytest.raises(ValueError, match="need"):
        ledger.accept("a", 1, 1, need)


def test_an_engine_key_serves_one_request(ledger: Ledger) -> None:
    ledger.accept("a", 1, 1, 1)
    with pytest.raises(ValueError, match="key 1"):
        ledger.accept("b", 1, 1, 1)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 3), st.integers(1, 60), st.integers(0, 3)), max_size=60))
def test_any_history_adds_up(history: list[tuple[int, int, int, int]]) -> None:
    """committed is the sum over live requests, whatever came before, and acceptance never takes it above the
    capacity."""
    ledger = Ledger(100, clock=Clock())
    charges: dict[int, list[int]] = {}
    for key, (call, attempt, blocks, action) in enumerate(history):
        if action == 0 and charges:
            ended = sorted(charges)[blocks % len(charges)]
            assert ledger.end(ended)
            del charges[ended]
        elif action == 1 and charges:
            grown = sorted(charges)[blocks % len(charges)]
            ledger.update_held({grown: blocks})
            charges[grown][1] = blocks
        else:
            outcome = ledger.accept(f"c{call}", attempt, key, blocks)
            if isinstance(outcome, Accepted) and not outcome.again:
                charges[key] = [blocks, 0]
                assert ledger.committed <= 100
        assert ledger.committed == sum(max(c) for c in charges.values())
        assert ledger.live == len(charges)
