"""The replica's front, put together and run from start to exit.

model read -> gRPC up, not ready -> engine loads -> ready, heartbeats -> drain, or death -> flush -> exit status
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from typing import Any, TypeVar

from pagemill_common import logs, telemetry
from pagemill_common.capacity import CapacityPool, HeartbeatLoop
from pagemill_common.grpc.loop import on_end_signals
from pagemill_common.listen import ListenError
from pagemill_common.status_file import StatusFile
from pagemill_common.telemetry import names
from pagemill_common.tokenisation import TokenizerError
from pagemill_replica.checkpoint import CheckpointError
from pagemill_replica.engine.messages import Loading, Ready
from pagemill_replica.engine_process.client import EngineClient, EngineStartError
from pagemill_replica.front import served as served_model
from pagemill_replica.front.assembly import Front
from pagemill_replica.front.served import ServedModel
from pagemill_replica.front.startup import engine_config, log_capacity, tell_of_redis
from pagemill_replica.settings import ReplicaSettings

_log = logs.get("pagemill.replica")

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_WRONG_SETTING = 2
_FLUSH_SECONDS = 2.0
"""For statuses to reach their callers after the last decision about a stream."""

T = TypeVar("T")


class StoppedError(Exception):
    """The process was told to stop at once."""


class ReplicaApp:
    """One replica process."""

    def __init__(self, settings: ReplicaSettings) -> None:
        """Needs a running loop."""
        self._settings = settings
        self._status = StatusFile(settings.status_file, settings.name)
        self._telemetry = telemetry.setup(
            names.SERVICE_REPLICA,
            settings.otlp_endpoint,
            instance=settings.name,
            attributes={"pagemill.pool": settings.pool},
        )
        self._stop = asyncio.Event()
        self._engine_lost = asyncio.Event()
        self._front: Front | None = None

    async def run(self) -> int:
        """Runs to the end; returns the exit status: 0 after a drain or a stop, 2 for a wrong setting, else 1."""
        on_end_signals(self._on_signal)
        try:
            status = await self._unless_told_to_stop()
            _log.info("replica stopped", exit_status=status)
            return status
        except (CheckpointError, TokenizerError) as failure:
            return self._cannot_start(f"--model: {failure}", EXIT_WRONG_SETTING)
        except EngineStartError as failure:
            return self._cannot_start(str(failure), EXIT_WRONG_SETTING if failure.flag else EXIT_FAILED)
        except ListenError as failure:
            return self._cannot_start(str(failure), EXIT_FAILED)
        finally:
            self._status.update(stage="stopped", ready=False)
            await asyncio.to_thread(self._telemetry.shutdown)

    def _cannot_start(self, error: str, status: int) -> int:
        _log.error("cannot start", error=error)
        self._status.update(error=error)
        return status

    def _on_signal(self, number: signal.Signals) -> None:
        front = self._front
        if front is None or front.view.link is None or front.drain.draining:
            self._stop.set()
        else:
            front.drain.begin(number.name)

    async def _unless_told_to_stop(self) -> int:
        try:
            return await self._serve()
        except StoppedError:
            return EXIT_OK

    async def _serve(self) -> int:
        settings, status = self._settings, self._status
        async with AsyncExitStack() as stack:
            if settings.metrics_listen is not None:
                status.update(metrics_address=self._telemetry.meters.listen(settings.metrics_listen).address)
            pool = await self._open_pool(stack)
            status.update(stage="reading the model")
            served = await self._unless_stopped(asyncio.to_thread(served_model.load, settings))
            front = self._front = stack.enter_context(Front(settings, served, self._telemetry))
            await front.server.start()
            stack.push_async_callback(front.server.stop, 0)
            front.view.address = settings.advertised(front.server.port)
            status.update(address=front.server.address)
            _log.info(
                "listening",
                address=front.server.address,
                model=served.name,
                epoch=front.view.epoch,
                metrics=status.status.metrics_address or "none",
            )
            ready = await self._start_engine(stack, front, served)
            front.open(ready)
            log_capacity(ready)
            if pool is not None:
                await self._start_heartbeats(stack, front, pool)
            watching = asyncio.create_task(front.readiness.run())
            stack.callback(watching.cancel)
            front.on_ready_change = lambda is_ready: status.update(ready=is_ready)
            front.readiness.judge()
            status.update(stage="ready", fraction=1.0)
            return await self._until_over(front)

    async def _start_engine(self, stack: AsyncExitStack, front: Front, served: ServedModel) -> Ready:
        engine = EngineClient(
            engine_config(self._settings, served),
            on_report=front.on_report,
            on_loading=self._on_loading,
            on_exit=self._on_engine_exit,
        )
        front.engine = engine
        stack.push_async_callback(engine.stop, _FLUSH_SECONDS)
        ready = await self._unless_stopped(engine.start())
        self._status.update(engine_pid=engine.pid)
        return ready

    def _on_loading(self, loading: Loading) -> None:
        if loading.stage != self._status.status.stage:
            _log.info("loading", stage=loading.stage)
        self._status.update(stage=loading.stage, fraction=round(loading.fraction, 3))

    def _on_engine_exit(self, reason: str) -> None:
        # First, since the process must end whatever becomes of telling others.
        self._engine_lost.set()
        _log.error("the engine is gone", reason=reason)
        assert self._front is not None
        self._front.on_engine_lost(reason)
        self._status.update(error=reason)

    async def _open_pool(self, stack: AsyncExitStack) -> CapacityPool | None:
        """The pool, if there is one; whether it answers is found out while the model loads."""
        if self._settings.redis_url is None:
            return None
        pool = await stack.enter_async_context(CapacityPool(self._settings.redis_url, self._settings.pool))
        asking = asyncio.create_task(tell_of_redis(pool), name="asking redis")
        stack.callback(asking.cancel)
        return pool

    async def _start_heartbeats(self, stack: AsyncExitStack, front: Front, pool: CapacityPool) -> None:
        interval = self._settings.heartbeat_interval
        beats = HeartbeatLoop(pool, front.view.beat, interval=interval, on_reply=front.on_beat_reply)
        front.heartbeats = beats
        await stack.enter_async_context(beats)

    async def _until_over(self, front: Front) -> int:
        """Waits for what comes first: a finished drain, a dead or hanging engine, an order to stop at once."""
        drained = asyncio.create_task(front.drain.run())
        lost = asyncio.create_task(self._engine_lost.wait())
        hung = asyncio.create_task(front.hang.wait())
        stopped = asyncio.create_task(self._stop.wait())
        done, rest = await asyncio.wait({drained, lost, hung, stopped}, return_when=asyncio.FIRST_COMPLETED)
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        if hung in done:
            self._on_engine_exit(hung.result())
        if stopped in done:
            front.close_streams()
        self._status.update(stage="stopping", ready=False)
        await front.wait_for_streams(_FLUSH_SECONDS)
        await front.server.stop(_FLUSH_SECONDS)
        if drained in done:
            drained.result()
        return EXIT_FAILED if self._engine_lost.is_set() else EXIT_OK

    async def _unless_stopped(self, step: Coroutine[Any, Any, T]) -> T:
        """Runs a step of the start; raises StoppedError, the step cancelled, where a signal comes first."""
        task = asyncio.ensure_future(step)
        stopped = asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise StoppedError
        finally:
            for pending in (task, stopped):
                pending.cancel()
            await asyncio.gather(task, stopped, return_exceptions=True)
