"""One replica as its own task sees it: the channel, the `WatchState` stream and what it has told.

connecting --first state--> watching --silence, loss--> lost --backoff--> connecting
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from typing import Protocol

import grpc

from pagemill.v1 import replica_pb2, replica_pb2_grpc
from pagemill_common import logs
from pagemill_common.grpc.channel import open_channel
from pagemill_router.fleet.backoff import Backoff
from pagemill_router.fleet.known_blocks import HeldBlocks, KnownBlocks
from pagemill_router.fleet.sends import Sends
from pagemill_router.fleet.view import ReplicaView, Standing

_log = logs.get("pagemill.router.fleet")

PENDING_SECONDS = 0.5
"""How long the pending blocks that Redis told count: longer, and the replica's own figures have them."""


class Gate(Protocol):
    """Who says whether a replica may serve what it says it serves."""

    async def admit(self, link: ReplicaLink, state: replica_pb2.ReplicaState) -> str:
        """Empty where it may, once its tokenizer is at hand; else why not."""
        ...

    def leave(self, link: ReplicaLink) -> None:
        """The replica is lost, and may be back."""
        ...

    def forget(self, link: ReplicaLink) -> None:
        """The replica is gone."""
        ...


class ReplicaLink:
    """Owns everything about one address. `run` is its task; all else is read and called from the same loop."""

    def __init__(
        self,
        address: str,
        router: str,
        gate: Gate,
        sends: Sends,
        cordons: Mapping[str, str],
        *,
        clock: Callable[[], float],
        rng: random.Random,
        changed: Callable[[bool], None],
        watch_timeout: float = 4.0,
        max_known_blocks: int = 262_144,
    ) -> None:
        self.address = address
        self.channel = open_channel(address)
        self.stub = replica_pb2_grpc.ReplicaServiceStub(self.channel)
        self.state: replica_pb2.ReplicaState | None = None
        self.open_streams = 0
        self.held = HeldBlocks()
        self.fragile: set[Callable[[], None]] = set()
        """Called when the watch is lost: attempts that have brought nothing give up on the replica."""
        self._router = router
        self._gate = gate
        self._sends = sends
        self._cordons = cordons
        self._clock = clock
        self._backoff = Backoff(rng)
        self._changed = changed
        self._watch_timeout = watch_timeout
        self._known = KnownBlocks(max_known_blocks)
        self._last_heard: float | None = None
        self._refused = ""
        self._trouble = "connecting"
        self._pending = 0
        self._pending_at = float("-inf")
        self._view: ReplicaView | None = None

    @property
    def watching(self) -> bool:
        """The replica's stream is up and has told its state."""
        return not self._trouble

    @property
    def key(self) -> str:
        """`name:epoch`; empty before it has spoken."""
        return f"{self.state.name}:{self.state.epoch}" if self.state is not None else ""

    async def run(self) -> None:
        """Watches the replica until it is cancelled, over as many streams as it takes."""
        try:
            while True:
                trouble = await self._watch_once()
                self._down(trouble)
                await asyncio.sleep(self._backoff.pause())
        finally:
            self._gate.forget(self)
            self._abandon_fragile()
            self._sends.forget(self.key)
            await self.channel.close()

    async def _watch_once(self) -> str:
        """One stream to its end; why it ended."""
        stream = self.stub.WatchState(replica_pb2.WatchStateRequest(router=self._router))
        try:
            while True:
                async with asyncio.timeout(self._watch_timeout):
                    message = await stream.read()
                if not isinstance(message, replica_pb2.WatchStateResponse):
                    return "its state stream ended"
                await self._take(message)
        except TimeoutError:
            return f"silent for {self._watch_timeout:g} s"
        except grpc.aio.AioRpcError as error:
            return f"{error.code().name.lower()}: {error.details()}"[:200]
        except Exception as failure:
            # What one replica sends must not end its link for good, which would look ready for ever.
            _log.error("a replica's message could not be taken", exc_info=failure, address=self.address)
            return f"its message could not be taken: {type(failure).__name__}"
        finally:
            stream.cancel()

    async def _take(self, message: replica_pb2.WatchStateResponse) -> None:
        state = message.state
        if self.state is not None and state.epoch != self.state.epoch:
            self._restarted()
        fresh = self._trouble != ""
        self.state = state
        self._last_heard = self._clock()
        events = message.kv_events
        self._known.apply(snapshot=events.snapshot, stored=events.stored, removed=events.removed)
        self._sends.covered(self.key, message.seen_reservation_ids)
        self._refused = await self._gate.admit(self, state)
        self._trouble = ""
        self._backoff.reset()
        if fresh:
            _log.info("replica watched", replica=state.name, address=self.address, epoch=state.epoch)
        self.touch()

    def _restarted(self) -> None:
        """Another process answers at the address: nothing of the old one counts."""
        self._sends.forget(self.key)
        self._known.clear()
        self.held = HeldBlocks()
        self._pending = 0

    def _down(self, trouble: str) -> None:
        if not self._trouble and self.state is not None:
            _log.warning("replica lost", replica=self.state.name, address=self.address, reason=trouble)
        self._trouble = trouble
        self._gate.leave(self)
        self._known.clear()
        self._abandon_fragile()
        self.touch()

    def _abandon_fragile(self) -> None:
        for abandon in tuple(self.fragile):
            abandon()

    def touch(self) -> None:
        """Something about the replica has changed."""
        before, self._view = self._view, None
        after = self.view()
        roomier = after.ready and (before is None or not before.ready or after.committed < before.committed)
        self._changed(roomier)

    def told_by_redis(self, committed: int, pending: int) -> None:
        """Figures from a reserve's reply: fresher than the replica's last message."""
        if self.state is not None:
            self.state.committed_blocks = committed
        self._pending, self._pending_at = pending, self._clock()
        self._view = None

    def _standing(self) -> tuple[Standing, str]:
        if self.state is None:
            return Standing.NOT_READY, self._trouble
        if self._trouble:
            return Standing.LOST, self._trouble
        if self._refused:
            return Standing.NOT_READY, self._refused
        if self.state.draining:
            return Standing.DRAINING, "draining"
        if (why := self._cordons.get(self.state.name)) is not None:
            return Standing.CORDONED, f"cordoned: {why}" if why else "cordoned"
        if not self.state.ready:
            return Standing.NOT_READY, "says it is not ready"
        return Standing.READY, ""

    def view(self) -> ReplicaView:
        """The replica at this moment."""
        told = self._clock() - self._pending_at < PENDING_SECONDS
        pending = max(self._sends.blocks(self.key), self._pending if told else 0)
        view = self._view
        if view is None or view.pending != pending or view.open_streams != self.open_streams:
            self._view = view = self._build(pending)
        return view

    def _build(self, pending: int) -> ReplicaView:
        standing, reason = self._standing()
        state = self.state or replica_pb2.ReplicaState()
        return ReplicaView(
            address=self.address,
            name=state.name,
            epoch=state.epoch,
            model=state.model.name,
            aliases=tuple(state.model.aliases),
            standing=standing,
            reason=reason,
            max_request_tokens=state.model.max_request_tokens,
            capacity=state.capacity_blocks,
            used=state.used_blocks,
            committed=state.committed_blocks,
            pending=pending,
            waiting=state.waiting,
            running=state.running,
            watching_routers=max(1, state.watching_routers),
            open_streams=self.open_streams,
            last_heard=self._last_heard,
            cached=self._known,
            held=self.held,
        )
