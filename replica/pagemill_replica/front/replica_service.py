"""ReplicaService: what routers ask of a replica."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration

from pagemill.v1 import replica_pb2, replica_pb2_grpc
from pagemill_common import logs
from pagemill_common.grpc.sending import send
from pagemill_replica.front.drain import Drain
from pagemill_replica.front.served import ServedModel
from pagemill_replica.front.state import ReplicaView
from pagemill_replica.front.watch import KvChanges, Watcher, WatchHub

_log = logs.get("pagemill.replica")

CHUNK_BYTES = 1 << 20
"""Largest piece of a tokenizer bundle."""
MIN_GAP_SECONDS = 0.1
"""State messages are at least this far apart, however much changes."""
MAX_GAP_SECONDS = 1.0
"""And at most this far, however little does."""

Context = grpc.aio.ServicerContext[Any, Any]


class ReplicaServicer(replica_pb2_grpc.ReplicaServiceServicer):
    """WatchState, Drain and GetTokenizer."""

    def __init__(self, view: ReplicaView, hub: WatchHub, drain: Drain, served: Callable[[], ServedModel]) -> None:
        self._view = view
        self._hub = hub
        self._drain = drain
        self._served = served

    async def WatchState(  # type: ignore[override]  # noqa: N802 - writes to the context
        self, request: replica_pb2.WatchStateRequest, context: Context
    ) -> None:
        """A snapshot, then changes as they come and the state at least every second. Ends with the replica only."""
        router = request.router[:128] or context.peer()
        with self._hub.watching(router) as watcher:
            while True:
                watcher.changed.clear()
                for changes in self._hub.take_changes(watcher):
                    await send(context, self._message(watcher, changes))
                await asyncio.sleep(MIN_GAP_SECONDS)
                try:
                    async with asyncio.timeout(MAX_GAP_SECONDS - MIN_GAP_SECONDS):
                        await watcher.changed.wait()
                except TimeoutError:
                    continue

    async def Drain(  # noqa: N802 - the name in the protocol
        self, request: replica_pb2.DrainRequest, context: Context
    ) -> replica_pb2.DrainResponse:
        """Begins to drain; asking again tells how far it is."""
        self._drain.begin(request.reason[:256] or "asked by a caller")
        grace = Duration()
        grace.FromMilliseconds(round(self._drain.seconds_left * 1000))
        return replica_pb2.DrainResponse(live_requests=self._drain.live_requests, grace=grace)

    async def GetTokenizer(  # noqa: N802 - the name in the protocol
        self, request: replica_pb2.GetTokenizerRequest, context: Context
    ) -> AsyncIterator[replica_pb2.GetTokenizerResponse]:
        """The header, then the bundle in pieces unless the caller has it."""
        served = self._served()
        digest, bundle = served.digest, served.bundle
        yield replica_pb2.GetTokenizerResponse(header=replica_pb2.TokenizerHeader(digest=digest, size=len(bundle)))
        if request.known_digest == digest:
            return
        for start in range(0, len(bundle), CHUNK_BYTES):
            yield replica_pb2.GetTokenizerResponse(chunk=bundle[start : start + CHUNK_BYTES])

    def _message(self, watcher: Watcher, changes: KvChanges) -> replica_pb2.WatchStateResponse:
        return replica_pb2.WatchStateResponse(
            state=self._view.state(),
            kv_events=replica_pb2.KvEvents(snapshot=changes.snapshot, stored=changes.stored, removed=changes.removed),
            seen_reservation_ids=watcher.take_seen(),
        )
