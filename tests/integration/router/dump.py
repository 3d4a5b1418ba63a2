"""What a router and this process's tasks are at, for a test that got stuck."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from pagemill_router.app import Router


@asynccontextmanager
async def bounded(seconds: float, what: str, tell: Callable[[], str]) -> AsyncIterator[None]:
    """Fails with `tell()` and every task's place in the code where the block takes longer, in place of hanging."""
    try:
        async with asyncio.timeout(seconds) as timer:
            yield
    except TimeoutError:
        if not timer.expired():
            raise
        raise AssertionError(f"{what} took more than {seconds:g} s\n{tell()}\n{tasks()}") from None


def state_of(router: Router) -> str:
    """All that `Router.idle` looks at, and the links."""
    links = [
        f"{link.view().name or link.address} {link.view().standing.value} {link.view().reason!r}"
        f" open streams {link.open_streams} held {len(link.held)}"
        for link in router.fleet.links()
    ]
    live = dict(router.generation.live_ids._live)
    sends = router.fleet.sends._needs
    return (
        f"{router.settings.name}: live {live}, queued {router.room.length}, sends {sends}, mode"
        f" {router.admission.mode.value}, admission idle {router.admission.idle}; " + "; ".join(links)
    )


def tasks() -> str:
    """The chain of awaits of each task of this loop, outermost first."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    lines = [f"{task.get_name()}: {' > '.join(_chain(task.get_coro())) or task!r}" for task in others]
    # A gRPC server waits for each of its methods in a task of its own.
    return "\n".join(sorted(line for line in lines if "_request_" not in line))


def _chain(awaited: Any) -> list[str]:
    places = []
    while awaited is not None:
        frame = _first(awaited, "cr_frame", "ag_frame", "gi_frame")
        if frame is None:
            # A future, or something of gRPC's.
            places.append(repr(awaited)[:120])
            break
        places.append(f"{frame.f_code.co_qualname}:{frame.f_lineno}")
        awaited = _first(awaited, "cr_await", "ag_await", "gi_yieldfrom")
    return places


def _first(owner: Any, *names: str) -> Any:
    return next((found for name in names if (found := getattr(owner, name, None)) is not None), None)
