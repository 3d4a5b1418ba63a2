"""The front's side of the engine process: starts it, speaks to it, learns of its death at once.

    front                                     engine process
    submit, abort ── PUSH ─ to_engine ──────> PULL ─┐
    on_report    <── PULL ─ from_engine <──── PUSH ─┤ one message a step
    stdin pipe   ───────────────────────────> EOF = the front is gone
    child watcher <────────────────────────── exit status

Nothing here imports torch, numba or the runner.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from types import TracebackType

import msgspec

from pagemill_replica.engine.messages import Abort, Failed, FromEngine, Loading, Ready, Shutdown, StepReport, Submit
from pagemill_replica.engine_process.codec import decode_from_engine, encode
from pagemill_replica.engine_process.config import EngineConfig, Launch
from pagemill_replica.engine_process.inflight import Inflight
from pagemill_replica.engine_process.sockets import FrontSockets

_log = logging.getLogger("pagemill.engine.client")


class EngineStartError(RuntimeError):
    """The engine did not come up; the message says why, in one line."""

    def __init__(self, message: str, flag: str = "") -> None:
        super().__init__(message)
        self.flag = flag
        """The flag to change, where a setting is at fault."""


class EngineGoneError(RuntimeError):
    """The engine process has ended."""


class EngineClient:
    """Owns the engine process and the sockets to it. Used from one event loop."""

    def __init__(
        self,
        config: EngineConfig,
        on_report: Callable[[StepReport], None],
        on_loading: Callable[[Loading], None],
        on_exit: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on_exit` gets the reason where the engine ends, after `start` has returned, without having been told to."""
        self._config = config
        self._on_report = on_report
        self._on_loading = on_loading
        self._on_exit = on_exit
        self._sockets: FrontSockets | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[Ready] | None = None
        self._stopping = False
        self._gone = False
        self._inflight = Inflight(clock)

    async def __aenter__(self) -> EngineClient:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop(grace=5.0)

    @property
    def pid(self) -> int:
        """The engine's process id; 0 before `start`."""
        return self._process.pid if self._process is not None else 0

    @property
    def alive(self) -> bool:
        """The engine is up: it has said Ready and has not ended."""
        return not self._gone and self._ready is not None and self._ready.done() and not self._ready.cancelled()

    @property
    def busy(self) -> bool:
        """Requests are with the engine."""
        return self._inflight.busy

    @property
    def last_step_monotonic(self) -> float:
        """When the engine last computed or ended something, or else got its first request, by the client's clock.

        While `busy`, this rises; an age beyond what a step can take means that the engine is stuck.
        """
        return self._inflight.last_progress

    async def start(self) -> Ready:
        """Starts the process and waits until it is warm. Raises EngineStartError; cancelling it ends the process."""
        loop = asyncio.get_running_loop()
        self._ready = loop.create_future()
        try:
            self._sockets = FrontSockets(loop, self._receive)
            launch = Launch(
                config=self._config, to_engine=self._sockets.to_engine, from_engine=self._sockets.from_engine
            )
            # -P: a folder of the working directory must not stand in for a package.
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",
                "-m",
                "pagemill_replica.engine_process",
                stdin=asyncio.subprocess.PIPE,
                stdout=2,
                env=self._environment(),
            )
            self._watcher = asyncio.create_task(self._watch(self._process))
            stdin = self._process.stdin
            assert stdin is not None
            with contextlib.suppress(ConnectionError):
                stdin.write(msgspec.json.encode(launch) + b"\n")
                await stdin.drain()
            ready = await asyncio.shield(self._ready)
            await self._sockets.connected()
            return ready
        except BaseException as failure:
            self._stopping = True
            await self._end_process(0.0)
            if isinstance(failure, OSError):
                raise EngineStartError(f"the engine process cannot be started: {failure}") from failure
            raise

    def submit(self, message: Submit) -> None:
        """Hands a request to the engine; what comes of it comes through `on_report`. Raises EngineGoneError."""
        if not self.alive or self._stopping:
            raise EngineGoneError("the engine is not running")
        if not self._send(message):
            # It has died a moment ago and its exit status is still on the way.
            raise EngineGoneError("the engine process has closed its connection")
        self._inflight.submitted(message.key)

    def abort(self, key: int) -> None:
        """Ends a request, effective by the next step. No effect where it has ended or the engine is gone."""
        if key in self._inflight and self.alive:
            self._send(Abort(key))

    async def stop(self, grace: float) -> None:
        """Ends all requests as ABORTED and the process, by force after `grace` seconds. May be called twice."""
        self._stopping = True
        if self._process is not None and self._process.returncode is None and self.alive and self._send(Shutdown()):
            # With its standard input closed it would take the front for gone, and tell it nothing.
            await _ended(self._process, grace)
            grace = 0.0
        await self._end_process(grace)

    def _send(self, message: Submit | Abort | Shutdown) -> bool:
        assert self._sockets is not None
        return self._sockets.send(encode(message))

    def _receive(self, frame: bytes) -> None:
        try:
            self._deliver(decode_from_engine(frame))
        except Exception:
            # One message's handling must not keep the next ones from being read.
            _log.exception("handling a message of the engine failed")

    def _deliver(self, message: FromEngine) -> None:
        if self._gone:
            return
        match message:
            case StepReport():
                self._inflight.reported(message)
                self._on_report(message)
            case Loading():
                self._on_loading(message)
            case Ready():
                if self._ready is not None and not self._ready.done():
                    self._ready.set_result(message)
            case Failed():
                # Its exit may take seconds more: it sends its last spans first.
                self._lose(message.message, message.flag)

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        """Ends with the process, whatever ends it."""
        status = await process.wait()
        if self._sockets is not None:
            # What it said before it died still counts.
            self._sockets.drain()
            self._sockets.close()
        self._lose(_describe(status))

    def _lose(self, reason: str, flag: str = "") -> None:
        """The engine is gone or as good as that. The first reason counts."""
        if self._gone:
            return
        was_alive, self._gone = self.alive, True
        self._inflight.clear()
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(EngineStartError(reason, flag))
            # `start` may have been cancelled: then nobody asks for it.
            self._ready.exception()
        elif was_alive and not self._stopping:
            self._on_exit(reason)

    async def _end_process(self, grace: float) -> None:
        process, watcher = self._process, self._watcher
        if process is None:
            if self._sockets is not None:
                self._sockets.close()
            return
        if process.stdin is not None:
            process.stdin.close()
        if not await _ended(process, grace):
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        if watcher is not None:
            await watcher

    def _environment(self) -> dict[str, str]:
        """The child's environment: what has to be set before numba and torch are imported."""
        environment = dict(os.environ)
        # OpenMP's threads spin for milliseconds at every barrier. Beside any other busy process that burns the very
        # time slice they wait for: a decode step was measured at 6 s, and at 0.4 s with this.
        if "OMP_WAIT_POLICY" not in environment:
            environment.setdefault("GOMP_SPINCOUNT", "1000")
        if self._config.threads is not None:
            for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
                environment[name] = str(self._config.threads)
        if self._config.cache_dir is not None:
            environment.setdefault("NUMBA_CACHE_DIR", os.path.join(self._config.cache_dir, "numba"))
        return environment


async def _ended(process: asyncio.subprocess.Process, seconds: float) -> bool:
    """Waits until the process has ended, at most so long; whether it has."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await process.wait()
    return process.returncode is not None


def _describe(status: int) -> str:
    if status < 0:
        try:
            name = signal.Signals(-status).name
        except ValueError:
            name = f"signal {-status}"
        hint = " (out of memory?)" if name == "SIGKILL" else ""
        return f"the engine process was ended by {name}{hint}"
    return f"the engine process ended with status {status}"
