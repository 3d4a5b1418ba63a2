"""Local mode and the books it keeps."""

from __future__ import annotations

import pytest

from pagemill_router.admission.local import admit_locally, room_on
from pagemill_router.admission.types import Ask, Grant, NoRoom
from pagemill_router.fleet.known_blocks import HeldBlocks, KnownBlocks
from pagemill_router.fleet.sends import Sends
from pagemill_router.fleet.view import ReplicaView, Standing
from pagemill_router.policies.base import Candidate


def candidate(name: str, need: int, *, cost: float = 0.0, committed: int = 1, routers: int = 1) -> Candidate:
    view = ReplicaView(
        address=name,
        name=name,
        epoch="e",
        model="m",
        standing=Standing.READY,
        capacity=100,
        committed=committed,
        watching_routers=routers,
    )
    return Candidate(view, cost, 0, need, "")


def admit(*candidates: Candidate, sends: Sends | None = None, band: float = 0.0) -> Grant | NoRoom:
    return admit_locally(Ask(candidates, band), (sends or Sends()).blocks, "id")


@pytest.mark.parametrize(
    ("committed", "routers", "sent", "room"),
    [(20, 1, 0, 64), (20, 2, 0, 32), (20, 2, 10, 22), (20, 2, 40, 0), (120, 1, 0, 0), (0, 4, 0, 100), (0, 4, 5, 15)],
)
def test_room_is_a_share_of_what_is_free_less_own_sends(committed: int, routers: int, sent: int, room: int) -> None:
    assert room_on(candidate("a", 1, committed=committed, routers=routers), sent) == room


def test_an_idle_replica_takes_the_largest_request() -> None:
    assert isinstance(admit(candidate("a", 100, committed=0, routers=8)), Grant)


def test_own_sends_fill_a_replica_before_it_tells() -> None:
    sends, granted = Sends(), []
    for i in range(30):
        answer = admit(candidate("a", 10, committed=20), candidate("b", 10, committed=40), sends=sends, band=1.0)
        if isinstance(answer, NoRoom):
            break
        granted.append(answer.candidate.replica.name)
        sends.add(answer.candidate.replica.key, f"r{i}", answer.candidate.need)
    assert (granted.count("a"), granted.count("b")) == (6, 4)


def test_the_emptiest_within_the_band_and_the_cheapest_beyond() -> None:
    cheap, near, far = candidate("c", 1, cost=0, committed=50), candidate("n", 1, cost=1), candidate("f", 1, cost=9)
    answer = admit(cheap, near, far, band=1.0)
    assert isinstance(answer, Grant)
    assert answer.candidate.replica.name == "n"
    answer = admit(cheap, near, far)
    assert isinstance(answer, Grant)
    assert answer.candidate.replica.name == "c"


def test_sends_leave_the_book_when_the_replica_tells_or_the_attempt_ends() -> None:
    sends = Sends()
    sends.add("a:e", "one", 5)
    sends.add("a:e", "two", 7)
    sends.add("b:e", "three", 1)
    assert sends.blocks("a:e") == 12
    sends.covered("a:e", ["two", "unknown"])
    sends.covered("a:e", ["two"])
    assert sends.blocks("a:e") == 5
    sends.forget("a:e")
    sends.covered("b:e", ["three"])
    assert len(sends) == 0


def test_known_blocks_are_bounded_and_forget_the_oldest() -> None:
    blocks = KnownBlocks(limit=3)
    hashes = [bytes([i]) * 32 for i in range(5)]
    blocks.apply(snapshot=True, stored=hashes[:3], removed=())
    blocks.apply(snapshot=False, stored=hashes[3:4], removed=hashes[1:2])
    assert blocks.leading(hashes) == 1
    blocks.apply(snapshot=False, stored=hashes[4:], removed=())
    assert len(blocks) == 3
    assert blocks.leading(hashes) == 0
    blocks.apply(snapshot=True, stored=hashes[:1], removed=())
    assert len(blocks) == 1


def test_held_blocks_are_counted() -> None:
    held = HeldBlocks()
    held.hold([b"1", b"2"])
    held.hold([b"1"])
    held.drop([b"1", b"2"])
    assert held.leading([b"1", b"2"]) == 1
    held.drop([b"1"])
    assert len(held) == 0
