"""The router, wired: builds every part, serves, and ends in order.

SIGTERM --> health NOT_SERVING --settle--> GOAWAY --streams end, or the grace does--> flush --> exit
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from concurrent.futures import ThreadPoolExecutor

from pagemill.v1 import admin_pb2_grpc
from pagemill_common import capacity, logs, telemetry
from pagemill_common.grpc.loop import on_end_signals
from pagemill_common.grpc.options import MAX_REQUEST_BYTES, ServerOptions
from pagemill_common.grpc.server import GrpcServer
from pagemill_common.status_file import StatusFile
from pagemill_common.telemetry import names
from pagemill_router.admission.admission import Admission, RedisBooks
from pagemill_router.admission.types import Mode
from pagemill_router.discovery.redis import RedisDiscovery
from pagemill_router.discovery.source import Discovery
from pagemill_router.discovery.static import StaticDiscovery
from pagemill_router.fleet.fleet import Fleet
from pagemill_router.fleet.models import ModelBook
from pagemill_router.fleet.view import Standing
from pagemill_router.placement.placer import Placer
from pagemill_router.policies.registry import make_policy
from pagemill_router.relay.relay import Relay
from pagemill_router.servicer.admin import AdminService
from pagemill_router.servicer.generation import GenerationService
from pagemill_router.servicer.handlers import SERVICE, generation_handler
from pagemill_router.servicer.intake import Intake
from pagemill_router.settings import RouterSettings
from pagemill_router.telemetry import RouterTelemetry
from pagemill_router.waiting.room import WaitingRoom

_log = logs.get("pagemill.router")

ADMIN_SERVICE = "pagemill.v1.AdminService"


class Router:
    """One router. `run` serves until `drain` has been asked for and is done."""

    def __init__(self, settings: RouterSettings, observed: telemetry.Telemetry) -> None:
        self.settings = settings
        self.status = StatusFile(settings.status_file, settings.name)
        self._observed = observed
        self._telemetry = RouterTelemetry(observed)
        self._drain = asyncio.Event()
        self._at_once = asyncio.Event()
        self._stack = contextlib.AsyncExitStack()
        self._standings: dict[str, float] = {}
        self._build()

    def _build(self) -> None:
        settings, clock, rng = self.settings, time.monotonic, random.Random()
        self._executor = ThreadPoolExecutor(settings.tokenizer_threads, thread_name_prefix="tokenizer")
        self._pool = self._open_pool()
        self.book = ModelBook(self._executor, clock)
        self.fleet = Fleet(
            self._sources(rng),
            settings.name,
            self.book,
            clock=clock,
            rng=rng,
            watch_timeout=settings.watch_timeout,
            max_known_blocks=settings.max_known_blocks,
        )
        self.admission = Admission(
            self._books(rng),
            self.fleet.sends,
            clock=clock,
            told=self.fleet.told_by_redis,
            failed=self._telemetry.redis_failed,
        )
        self.room = WaitingRoom(settings.queue_limit, clock, rng)
        placer = Placer(
            self.fleet,
            make_policy(settings.policy),
            self.admission,
            self.room,
            self._telemetry,
            clock=clock,
            rng=rng,
            grace=settings.no_replica_grace,
        )
        relay = Relay(
            placer,
            self.admission,
            self._telemetry,
            router=settings.name,
            clock=clock,
            max_attempts=settings.max_attempts,
        )
        intake = Intake(self.book, self.fleet, self._executor, settings, clock)
        self.generation = GenerationService(settings.name, self.fleet, intake, relay, self._telemetry, clock)
        admin = AdminService(settings.name, self.fleet, placer, self.admission, intake, clock)
        self.server = GrpcServer(
            ServerOptions(
                settings.listen,
                max_receive_bytes=MAX_REQUEST_BYTES,
                max_connection_age=settings.max_connection_age,
                max_connection_age_grace=settings.max_stream_seconds,
                reflection=settings.reflection,
                channelz=settings.reflection,
            ),
            [SERVICE, ADMIN_SERVICE],
        )
        self.server.server.add_generic_rpc_handlers((generation_handler(self.generation),))
        admin_pb2_grpc.add_AdminServiceServicer_to_server(admin, self.server.server)

    def _open_pool(self) -> capacity.CapacityPool | None:
        settings = self.settings
        if settings.redis_url is None:
            return None
        limits = capacity.CapacitySettings(reserve_deadline=settings.reserve_timeout)
        return capacity.CapacityPool(settings.redis_url, settings.pool, settings=limits)

    def _sources(self, rng: random.Random) -> list[Discovery]:
        sources: list[Discovery] = []
        if self.settings.replicas:
            sources.append(StaticDiscovery(self.settings.replicas))
        if self._pool is not None:
            sources.append(RedisDiscovery(self._pool, rng, self.settings.discovery_interval))
        return sources

    def _books(self, rng: random.Random) -> RedisBooks | None:
        if self._pool is None:
            return None
        breaker = capacity.Breaker(time.monotonic, rng.random)
        return RedisBooks(self._pool, capacity.ReserveBatcher(self._pool), breaker)

    def drain(self) -> None:
        """Begins to end; asked a second time, ends at once."""
        if self._drain.is_set():
            self._at_once.set()
        self._drain.set()

    @property
    def idle(self) -> bool:
        """No call is in progress and nothing of one is left: no place in line, no send, no release under way."""
        streams = sum(link.open_streams + len(link.held) for link in self.fleet.links())
        return not (len(self.generation.live_ids) or self.room.length or streams) and self.admission.idle

    async def run(self) -> None:
        """Serves until the drain is done. Raises ListenError where the address is taken."""
        try:
            async with self._stack as stack:
                await self._start(stack)
                tasks = [
                    asyncio.create_task(self._become_ready(), name="readiness"),
                    asyncio.create_task(self.admission.keep_mode(self._watched), name="admission mode"),
                ]
                await self._drain.wait()
                for task in tasks:
                    task.cancel()
                await self._end()
                await asyncio.wait(tasks)
        except Exception as failure:
            self.status.update(stage="failed", ready=False, error=str(failure))
            raise
        finally:
            self._executor.shutdown(wait=False, cancel_futures=True)

    async def _start(self, stack: contextlib.AsyncExitStack) -> None:
        if self._pool is not None:
            await stack.enter_async_context(self._pool)
        stack.push_async_callback(self.admission.close)
        await stack.enter_async_context(self.fleet)
        self._observe()
        metrics_address = None
        if self.settings.metrics_listen is not None:
            metrics_address = self._observed.meters.listen(self.settings.metrics_listen).address
        address = await self.server.start()
        stack.push_async_callback(self.server.stop, 0.0)
        self.status.update(stage="finding replicas", address=address, metrics_address=metrics_address)
        _log.info(
            "router serves",
            address=address,
            policy=self.settings.policy,
            pool=self.settings.pool,
            admission=self.admission.mode.value,
            metrics=metrics_address or "none",
        )

    async def _become_ready(self) -> None:
        """Ready once a tokenizer is known, so that calls can be taken; stays so while replicas or Redis blink."""
        known = asyncio.Event()
        self.fleet.on_change(lambda roomier: known.set() if len(self.book) else None)
        await known.wait()
        self.server.health.set_serving(True)
        self.status.update(stage="ready", fraction=1.0, ready=True)
        _log.info("router ready", models=[served.model.name for served in self.book.all()])

    async def _end(self) -> None:
        self.server.health.set_serving(False)
        self.status.update(stage="draining", ready=False)
        _log.info("draining", streams=len(self.generation.live_ids), settle=self.settings.drain_settle)
        await self._unless_at_once(self.settings.drain_settle)
        stopping = asyncio.ensure_future(self.server.stop(self.settings.drain_grace))
        at_once = asyncio.ensure_future(self._at_once.wait())
        await asyncio.wait({stopping, at_once}, return_when=asyncio.FIRST_COMPLETED)
        at_once.cancel()
        if not stopping.done():
            await self.server.stop(0)
        await stopping
        self.status.update(stage="stopped")

    async def _unless_at_once(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._at_once.wait()

    def _watched(self) -> set[str]:
        return {view.key for view in self.fleet.snapshot().replicas if view.ready}

    def _observe(self) -> None:
        self.fleet.on_change(lambda roomier: self._count_standings())
        self._telemetry.watch(
            queued=lambda: self.room.length,
            streams=lambda: len(self.generation.live_ids),
            replicas=lambda: self._standings,
            modes=lambda: {mode.value: float(self.admission.mode is mode) for mode in Mode},
        )

    def _count_standings(self) -> None:
        counts = {standing.value: 0.0 for standing in Standing}
        for view in self.fleet.snapshot().replicas:
            counts[view.standing.value] += 1
        # Replaced whole: the Prometheus thread reads it.
        self._standings = counts


async def serve(settings: RouterSettings) -> None:
    """Runs a router in this process until SIGTERM or SIGINT has drained it."""
    observed = telemetry.setup(names.SERVICE_ROUTER, settings.otlp_endpoint, instance=settings.name)
    try:
        router = Router(settings, observed)
        on_end_signals(lambda _number: router.drain())
        await router.run()
        _log.info("router stopped")
    finally:
        await asyncio.get_running_loop().run_in_executor(None, observed.shutdown)
