"""grpc.health.v1 for grpc.aio, with Watch.

Each watcher has its own event, so that one that stops reading cannot hold back a change for the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from pagemill_common.grpc.sending import send

_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


class HealthService(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """One readiness for all services of a server, the empty name included. Starts as NOT_SERVING."""

    def __init__(self, services: Iterable[str]) -> None:
        self._services = {"", *services}
        self._serving = False
        self._watchers: set[asyncio.Event] = set()

    @property
    def serving(self) -> bool:
        """What the service says at this moment."""
        return self._serving

    def set_serving(self, serving: bool) -> None:
        """Says SERVING or NOT_SERVING from here on, to watchers at once."""
        if serving == self._serving:
            return
        self._serving = serving
        for event in self._watchers:
            event.set()

    async def Check(  # noqa: N802 - the name in the protocol
        self,
        request: health_pb2.HealthCheckRequest,
        context: grpc.aio.ServicerContext[health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse],
    ) -> health_pb2.HealthCheckResponse:
        """Answers once; NOT_FOUND for a service that is not here."""
        status = self._status(request.service)
        if status == _UNKNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such service")
        return health_pb2.HealthCheckResponse(status=status)

    async def Watch(  # noqa: N802 - the name in the protocol
        self,
        request: health_pb2.HealthCheckRequest,
        context: grpc.aio.ServicerContext[health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse],
    ) -> None:
        """Sends the status and then every change of it; intermediate ones may be skipped."""
        changed = asyncio.Event()
        self._watchers.add(changed)
        try:
            last = None
            while True:
                changed.clear()
                status = self._status(request.service)
                if status != last:
                    await send(context, health_pb2.HealthCheckResponse(status=status))
                    last = status
                await changed.wait()
        finally:
            self._watchers.discard(changed)

    def _status(self, service: str) -> health_pb2.HealthCheckResponse.ServingStatus:
        if service not in self._services:
            return _UNKNOWN
        return _SERVING if self._serving else _NOT_SERVING
