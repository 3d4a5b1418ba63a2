"""The parts of the front and how they hang together."""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType

from pagemill.v1 import generation_pb2, generation_pb2_grpc, replica_pb2, replica_pb2_grpc
from pagemill_common import errors
from pagemill_common.capacity import Beat, BeatReply, HeartbeatLoop
from pagemill_common.grpc.options import ServerOptions
from pagemill_common.grpc.server import GrpcServer
from pagemill_common.telemetry import Telemetry
from pagemill_replica.engine.messages import Ready, StepReport
from pagemill_replica.engine_process.client import EngineClient
from pagemill_replica.front import served as served_model
from pagemill_replica.front.admission import Admission, Limits
from pagemill_replica.front.drain import Drain, DrainTimes
from pagemill_replica.front.gate import Gate
from pagemill_replica.front.generation_service import GenerationServicer
from pagemill_replica.front.generator import Generator
from pagemill_replica.front.hang import HangWatch
from pagemill_replica.front.health import ReadinessWatch
from pagemill_replica.front.ledger import Ledger
from pagemill_replica.front.link import EngineLink
from pagemill_replica.front.metrics import ReplicaMetrics
from pagemill_replica.front.models import ModelShelf
from pagemill_replica.front.readiness import Progress
from pagemill_replica.front.replica_service import ReplicaServicer
from pagemill_replica.front.served import ServedModel
from pagemill_replica.front.state import ReplicaView
from pagemill_replica.front.watch import WatchHub
from pagemill_replica.settings import ReplicaSettings

SERVICES = (
    generation_pb2.DESCRIPTOR.services_by_name["GenerationService"].full_name,
    replica_pb2.DESCRIPTOR.services_by_name["ReplicaService"].full_name,
)


class Front:
    """Everything between the sockets of callers and the engine's. Leaving the context ends its threads."""

    def __init__(self, settings: ReplicaSettings, served: ServedModel, telemetry: Telemetry) -> None:
        clock = time.monotonic
        self.engine: EngineClient | None = None
        self.heartbeats: HeartbeatLoop | None = None
        self.on_ready_change: Callable[[bool], None] = lambda _: None
        self.hub = WatchHub()
        self.view = ReplicaView(settings.name, secrets.token_hex(8), self.hub)
        self.drain = Drain(
            DrainTimes.of(
                settle=settings.drain_settle, grace=settings.max_stream_seconds, margin=settings.drain_margin
            ),
            clock=clock,
            live=lambda: self._generator.active,
            idle=lambda: self._generator.wait_idle(),
            on_begin=self._on_drain,
            close_stragglers=self.close_streams,
        )
        self.readiness = ReadinessWatch(
            self._progress,
            draining=lambda: self.drain.draining,
            stall_after=settings.stall_after,
            clock=clock,
            on_change=self._on_readiness,
        )
        self.hang = HangWatch(self._progress, limit=settings.hang_limit, clock=clock)
        self.view.why_not_ready = self.readiness.why_not
        self.view.engine_pid = lambda: self.engine.pid if self.engine is not None else 0
        self._served = served
        self._clock = clock
        self._metrics = ReplicaMetrics(telemetry.meters)
        self._metrics.observe(self.view, lambda: self.hub.cached_blocks, self._silence)
        self._executor = ThreadPoolExecutor(settings.prepare_threads, "prepare")
        self._models = ModelShelf(served, self._executor)
        admission = Admission(
            self.view,
            Gate(self.view, self.drain),
            self._models,
            Limits(settings.default_timeout, settings.max_stream_seconds, settings.max_unread),
            clock=clock,
            rng=random.SystemRandom(),
        )
        self._generator = Generator(admission, self._metrics, telemetry.tracer, replica=settings.name, clock=clock)
        self.server = GrpcServer(
            ServerOptions(settings.listen, reflection=settings.reflection, channelz=settings.reflection), SERVICES
        )
        self._add_services()

    def open(self, ready: Ready) -> None:
        """The engine is warm: requests may come in."""
        assert self.engine is not None, "the engine is started before the front opens"
        model = served_model.describe(self._served, ready)
        self._models.open(model)
        self.view.model = model
        ledger = Ledger(ready.num_blocks, clock=self._clock, on_seen=self.hub.seen)
        self.view.link = EngineLink(
            self.engine,
            ledger,
            self.hub,
            block_size=ready.block_size,
            clock=self._clock,
            on_big_change=self._nudge,
            on_step=self._metrics.step,
        )

    def on_report(self, report: StepReport) -> None:
        """One step of the engine."""
        if self.view.link is not None:
            self.view.link.on_report(report)

    def on_engine_lost(self, reason: str) -> None:
        """The engine process has died, or has been given up on."""
        if self.view.link is not None:
            self.view.link.on_lost(reason)
        self.readiness.judge()

    def on_beat_reply(self, beat: Beat, reply: BeatReply) -> None:
        """Redis has answered a heartbeat."""
        if reply.acknowledged and self.view.link is not None:
            self.view.link.ledger.acknowledge(beat.seen)

    def close_streams(self) -> int:
        """Ends the streams that still run with DRAINING; returns how many."""
        link = self.view.link
        return 0 if link is None else link.fail_all(lambda: errors.draining(0.0))

    async def wait_for_streams(self, seconds: float) -> None:
        """Returns when all calls have left, or after `seconds`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._generator.wait_idle()

    def __enter__(self) -> Front:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _add_services(self) -> None:
        generation = GenerationServicer(self._generator, self._models, self._clock)
        replica = ReplicaServicer(self.view, self.hub, self.drain, lambda: self._served)
        generation_pb2_grpc.add_GenerationServiceServicer_to_server(generation, self.server.server)
        replica_pb2_grpc.add_ReplicaServiceServicer_to_server(replica, self.server.server)

    def _progress(self) -> Progress:
        engine, link = self.engine, self.view.link
        if engine is None or link is None:
            return Progress(warm=False, alive=True, busy=False, last_step=0.0)
        return Progress(
            warm=True, alive=engine.alive and not link.lost, busy=engine.busy, last_step=engine.last_step_monotonic
        )

    def _silence(self) -> float:
        silence = None if self.heartbeats is None else self.heartbeats.silence
        return -1.0 if silence is None else silence

    def _nudge(self) -> None:
        if self.heartbeats is not None:
            self.heartbeats.nudge()

    def _on_drain(self) -> None:
        self.view.draining = True
        self.readiness.judge()

    def _on_readiness(self, ready: bool) -> None:
        self.server.health.set_serving(ready)
        self.hub.wake()
        self._nudge()
        self.on_ready_change(ready)
