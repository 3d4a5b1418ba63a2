"""All replicas: starts a link for each address found and ends it when the address is gone and silent."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType

from pagemill_common import logs
from pagemill_common.capacity import Figures
from pagemill_router.discovery.source import Discovery
from pagemill_router.fleet.link import Gate, ReplicaLink
from pagemill_router.fleet.sends import Sends
from pagemill_router.fleet.view import FleetSnapshot, ReplicaView

_log = logs.get("pagemill.router.fleet")

SWEEP_SECONDS = 1.0


class Fleet:
    """Owns the links. Use it as an async context manager: leaving it ends every link."""

    def __init__(
        self,
        sources: Sequence[Discovery],
        router: str,
        gate: Gate,
        *,
        clock: Callable[[], float],
        rng: random.Random,
        watch_timeout: float = 4.0,
        max_known_blocks: int = 262_144,
    ) -> None:
        self.sends = Sends()
        self._sources = sources
        self._router = router
        self._gate = gate
        self._clock = clock
        self._rng = rng
        self._watch_timeout = watch_timeout
        self._max_known_blocks = max_known_blocks
        self._cordons: dict[str, str] = {}
        self._links: dict[str, ReplicaLink] = {}
        self._link_tasks: dict[str, asyncio.Task[None]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._found: dict[str, frozenset[str]] = {}
        self._listeners: list[Callable[[bool], None]] = []

    async def __aenter__(self) -> Fleet:
        for source in self._sources:
            self._tasks.append(asyncio.create_task(self._follow(source), name=f"discovery {source.name}"))
        self._tasks.append(asyncio.create_task(self._sweep(), name="fleet sweep"))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        tasks = [*self._tasks, *self._link_tasks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._links.clear()
        self._link_tasks.clear()

    def on_change(self, listener: Callable[[bool], None]) -> None:
        """`listener` is called in the loop after any change of a replica, with True where it may have more room."""
        self._listeners.append(listener)

    def snapshot(self) -> FleetSnapshot:
        """All replicas at this moment."""
        views: dict[str, ReplicaView] = {}
        for link in self._links.values():
            view = link.view()
            # One process found under two addresses is one replica.
            known = views.get(view.key if view.epoch else view.address)
            if known is None or (view.ready and not known.ready):
                views[view.key if view.epoch else view.address] = view
        return FleetSnapshot(tuple(views.values()))

    def links(self) -> Iterable[ReplicaLink]:
        """All links."""
        return self._links.values()

    def told_by_redis(self, figures: Iterable[Figures]) -> None:
        """Takes the figures of a reserve's reply."""
        for one in figures:
            link = self.by_key(one.replica)
            if link is not None and one.capacity:
                link.told_by_redis(one.committed, one.pending)

    def by_key(self, key: str) -> ReplicaLink | None:
        """The link of `name:epoch`; None where that process is gone."""
        return next((link for link in self._links.values() if link.state is not None and link.key == key), None)

    def by_name(self, name: str) -> ReplicaLink | None:
        """The link of the replica called `name`, the watched one where two claim the name."""
        named = [link for link in self._links.values() if link.state is not None and link.state.name == name]
        return next((link for link in named if link.watching), named[0] if named else None)

    def cordon(self, name: str, reason: str) -> None:
        """The replica gets no new requests from this router, whichever process bears the name, until `uncordon`.

        An empty reason keeps that of an earlier cordon: who repeats it knows less, not better.
        """
        self._cordons[name] = reason or self._cordons.get(name, "")
        self._touch(name)

    def uncordon(self, name: str) -> None:
        """Takes `cordon` back."""
        self._cordons.pop(name, None)
        self._touch(name)

    def _touch(self, name: str) -> None:
        for link in self._links.values():
            if link.state is not None and link.state.name == name:
                link.touch()

    async def _follow(self, source: Discovery) -> None:
        while True:
            try:
                async for addresses in source.watch():
                    self._found[source.name] = addresses
                    self._reconcile()
            except Exception as failure:
                _log.error("discovery failed", exc_info=failure, source=source.name)
            await asyncio.sleep(SWEEP_SECONDS)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            self._reconcile()

    def _reconcile(self) -> None:
        """Every address found has a link; one found no longer loses it once its replica is silent and streams nothing.

        A Redis that has been restarted empty lists nobody for a moment, and a state stream may break at that moment:
        neither ends a stream, and one to a dead host is ended by keepalive.
        """
        wanted: frozenset[str] = frozenset().union(*self._found.values())
        for address in wanted - self._links.keys():
            self._start(address)
        for address in self._links.keys() - wanted:
            link = self._links[address]
            if not link.watching and not link.open_streams:
                self._end(address)

    def _start(self, address: str) -> None:
        link = ReplicaLink(
            address,
            self._router,
            self._gate,
            self.sends,
            self._cordons,
            clock=self._clock,
            rng=self._rng,
            changed=self._notify,
            watch_timeout=self._watch_timeout,
            max_known_blocks=self._max_known_blocks,
        )
        self._links[address] = link
        self._link_tasks[address] = asyncio.create_task(link.run(), name=f"replica {address}")
        _log.info("replica found", address=address)

    def _end(self, address: str) -> None:
        self._links.pop(address)
        self._link_tasks.pop(address).cancel()
        _log.info("replica gone", address=address)
        self._notify(False)

    def _notify(self, roomier: bool) -> None:
        for listener in self._listeners:
            listener(roomier)
