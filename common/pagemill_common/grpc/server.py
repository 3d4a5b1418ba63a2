"""A grpc.aio server with what every tier needs: status mapping, health, reflection, a graceful stop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import TracebackType

import grpc
from grpc_channelz.v1 import channelz
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from pagemill_common.grpc.health import HealthService
from pagemill_common.grpc.interceptor import StatusInterceptor
from pagemill_common.grpc.options import ServerOptions, server_options
from pagemill_common.listen import check_free, refusal

_FLAG = "--listen"
"""The flag of either tier from which the address comes."""


class GrpcServer:
    """Owns one `grpc.aio.Server`.

    Add servicers to `.server`, then `await start()`, or use it as an async context manager, which starts on entry and
    stops without grace on exit. `.health` starts as NOT_SERVING.
    """

    def __init__(
        self,
        options: ServerOptions,
        services: Sequence[str],
        interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
    ) -> None:
        """`services`: full names of the services that health and reflection know, such as pagemill.v1.AdminService."""
        self._options = options
        self.server: grpc.aio.Server = grpc.aio.server(
            interceptors=[StatusInterceptor(), *interceptors], options=list(server_options(options))
        )
        self.health = HealthService(services)
        self.port = 0
        health_pb2_grpc.add_HealthServicer_to_server(self.health, self.server)
        if options.reflection:
            health_name = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
            reflection.enable_server_reflection([*services, health_name, reflection.SERVICE_NAME], self.server)
        if options.channelz:
            channelz.add_channelz_servicer(self.server)

    @property
    def host(self) -> str:
        """The host that was asked for."""
        return self._options.listen.rpartition(":")[0]

    @property
    def address(self) -> str:
        """host:port with the port in use, once started."""
        return f"{self.host}:{self.port}"

    async def start(self) -> str:
        """Binds and serves; returns `address`. Raises ListenError, which names flag and address."""
        check_free(_FLAG, self._options.listen)
        try:
            self.port = self.server.add_insecure_port(self._options.listen)
        except RuntimeError as failure:
            raise refusal(_FLAG, self._options.listen, None) from failure
        await self.server.start()
        return self.address

    async def stop(self, grace: float) -> None:
        """Sends GOAWAY, refuses new calls, lets calls in progress end for `grace` seconds, then cancels them."""
        self.health.set_serving(False)
        # grpc would keep waiting for the whole grace when it is cancelled half-way.
        await asyncio.shield(self.server.stop(grace))

    async def __aenter__(self) -> GrpcServer:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop(0)
