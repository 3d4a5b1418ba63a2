"""Local mode: room by what the replicas say of themselves. A pure decision; the replica's ledger is the guard."""

from __future__ import annotations

from collections.abc import Callable

from pagemill_common.capacity.figures import local_room
from pagemill_router.admission.types import Answer, Ask, Grant, Mode, NoRoom
from pagemill_router.policies.base import Candidate

RETRY_SECONDS = 0.25


def room_on(candidate: Candidate, sent: int) -> int:
    """Blocks that this router may still fill there, `sent` of its own being on their way.

    A replica that is idle as far as anyone can tell takes whatever it can hold: a share of it would never be enough
    for the largest requests. Should another router think the same, the ledger refuses the second.
    """
    view = candidate.replica
    if view.committed == 0 and sent == 0:
        return view.capacity
    return local_room(view.capacity, view.committed, view.watching_routers, sent)


def admit_locally(ask: Ask, sent: Callable[[str], int], reservation_id: str) -> Answer:
    """The emptiest among the cheapest candidates with room, as the script in Redis would choose.

    `sent` gives the blocks that this router has sent to a `name:epoch` and that its figures do not cover.
    """
    fitting = [one for one in ask.candidates if one.need <= room_on(one, sent(one.replica.key))]
    figures = ", ".join(
        f"{one.replica.name} need {one.need} room {room_on(one, sent(one.replica.key))}" for one in ask.candidates
    )
    if not fitting:
        return NoRoom(Mode.LOCAL, "full", RETRY_SECONDS, f"no room: {figures}")
    cheapest = min(one.cost for one in fitting)
    near = [one for one in fitting if one.cost <= cheapest + ask.band]
    best = min(near, key=lambda one: _fill(one, sent(one.replica.key)))
    return Grant(best, reservation_id, Mode.LOCAL, reply=f"{best.replica.name} by its own figures: {figures}")


def _fill(candidate: Candidate, sent: int) -> float:
    view = candidate.replica
    return (view.committed + sent + candidate.need) / view.capacity
