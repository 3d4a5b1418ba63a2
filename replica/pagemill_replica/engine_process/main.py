"""The engine process: `python -m pagemill_replica.engine_process`, started by the front with a Launch on its stdin."""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack

import msgspec

from pagemill_common import logs, telemetry
from pagemill_common.telemetry import names
from pagemill_replica.engine.messages import Failed, Loading
from pagemill_replica.engine_process.build import build_engine
from pagemill_replica.engine_process.config import EngineConfig, Launch
from pagemill_replica.engine_process.loop import EngineLoop
from pagemill_replica.engine_process.orphan import OrphanWatch
from pagemill_replica.engine_process.spans import EngineSpans
from pagemill_replica.engine_process.transport import EngineTransport

_log = logs.get("pagemill.engine")


def main() -> int:
    """Runs the engine until the front tells it to leave or is gone. Returns the exit status."""
    # The front decides when the engine ends: a Ctrl-C at the terminal or a signal to the whole group is the front's
    # order to drain, and draining needs the engine.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    launch = msgspec.json.decode(_read_line(0), type=Launch)
    watch = OrphanWatch(0)
    config = launch.config
    logs.configure(config.log_format, config.log_level, service=names.SERVICE_ENGINE, instance=config.instance)
    with EngineTransport(launch.to_engine, launch.from_engine) as transport, ExitStack() as at_exit:
        try:
            _serve(config, transport, watch, at_exit)
        except Exception as error:
            # An error of ours says all there is to say; of any other the place tells more than its text.
            _log.error("the engine cannot go on", exc_info=None if _is_ours(error) else error, reason=_reason(error))
            if not watch.orphaned():
                transport.send(Failed(_reason(error), str(getattr(error, "flag", ""))))
            return 1
        finally:
            watch.leaving()
    return 0


def _serve(config: EngineConfig, transport: EngineTransport, watch: OrphanWatch, at_exit: ExitStack) -> None:
    built = build_engine(config, LoadingMessages(transport.send, time.monotonic), time.monotonic)
    exported = telemetry.setup(names.SERVICE_ENGINE, config.otlp_endpoint, instance=config.instance)
    # After the front has been told of a failure: a receiver of spans that does not answer costs seconds.
    at_exit.callback(exported.shutdown)
    loop = EngineLoop(built.core, transport, EngineSpans(exported), orphaned=watch.orphaned, clock=time.monotonic)
    # Everything built so far lives as long as the process: the collector need not look at it again.
    gc.collect()
    gc.freeze()
    watch.serving()
    transport.send(built.ready)
    loop.run()


class LoadingMessages:
    """Sends progress, but of one stage not more than some messages a second."""

    def __init__(self, send: Callable[[Loading], None], clock: Callable[[], float], every: float = 0.1) -> None:
        self._send = send
        self._clock = clock
        self._every = every
        self._stage = ""
        self._at = 0.0

    def __call__(self, stage: str, fraction: float) -> None:
        """Takes note of a fraction of a stage; the first and the last of each are always sent."""
        now = self._clock()
        if stage == self._stage and fraction < 1.0 and now - self._at < self._every:
            return
        self._stage, self._at = stage, now
        self._send(Loading(stage, fraction))


def _read_line(descriptor: int) -> bytes:
    """The first line of a pipe, without taking more from it than that."""
    line = bytearray()
    while not line.endswith(b"\n"):
        byte = os.read(descriptor, 1)
        if not byte:
            break
        line += byte
    return bytes(line)


def _reason(error: Exception) -> str:
    """One line for whoever started the replica."""
    text = " ".join(str(error).split())
    return text if _is_ours(error) and text else f"{type(error).__name__}: {text}"


def _is_ours(error: Exception) -> bool:
    return type(error).__module__.startswith("pagemill")


if __name__ == "__main__":
    sys.exit(main())
