"""The engine's main loop: messages in, one step, one message out."""

from __future__ import annotations

import logging
from collections.abc import Callable

from pagemill_replica.engine.core import EngineCore
from pagemill_replica.engine.messages import Abort, Shutdown, StepReport, Submit, ToEngine
from pagemill_replica.engine_process.codec import BadFrameError
from pagemill_replica.engine_process.spans import EngineSpans
from pagemill_replica.engine_process.transport import EngineTransport

_log = logging.getLogger("pagemill.engine")

IDLE_WAIT_SECONDS = 0.5
"""How often an idle engine looks whether the front still lives."""
CHECK_SECONDS = 10.0
"""The books are checked when idle, but not more often than this: it walks all blocks."""
MAX_FAILED_STEPS = 8
"""So many failed steps in a row, and the device is taken to be broken."""


class EngineBrokenError(RuntimeError):
    """The engine cannot go on."""


class EngineLoop:
    """Runs until told to leave."""

    def __init__(
        self,
        core: EngineCore,
        transport: EngineTransport,
        spans: EngineSpans,
        *,
        orphaned: Callable[[], bool],
        clock: Callable[[], float],
    ) -> None:
        """`orphaned` says whether the front is gone."""
        self._core = core
        self._transport = transport
        self._spans = spans
        self._orphaned = orphaned
        self._clock = clock
        self._leaving = False
        self._unchecked_since: float | None = None

    def run(self) -> None:
        """Returns after Shutdown or when the front is gone, all requests ended.

        Raises EngineBrokenError where the device is, and AccountingError where the books are wrong.
        """
        while not self._leaving:
            self._take(0.0 if self._core.has_work else IDLE_WAIT_SECONDS)
            if self._core.has_work and not self._leaving:
                self._step()
            else:
                self._check_when_due()
        self._core.abort_all()
        if self._core.has_work and not self._orphaned():
            self._publish(self._core.step())

    def _take(self, wait_seconds: float) -> None:
        for message in self._transport.receive(wait_seconds):
            self._handle(message)
        if self._orphaned():
            self._leaving = True

    def _handle(self, message: ToEngine | BadFrameError) -> None:
        match message:
            case Submit():
                self._submit(message)
            case Abort():
                self._core.abort(message.key)
            case Shutdown():
                self._leaving = True
            case BadFrameError():
                _log.error("a frame of the front is unreadable: %s", message)
                if message.key is not None:
                    self._core.refuse(message.key, f"unreadable: {message}")

    def _submit(self, message: Submit) -> None:
        try:
            self._core.submit(message)
        except Exception as error:
            # Whatever is wrong with one request, its caller gets an end and the others go on.
            _log.exception("request %d is refused", message.key)
            self._core.refuse(message.key, f"{type(error).__name__}: {error}")
        else:
            self._spans.submitted(message)

    def _step(self) -> None:
        if self._unchecked_since is None:
            self._unchecked_since = self._clock()
        self._publish(self._core.step())
        if self._core.failed_steps >= MAX_FAILED_STEPS:
            raise EngineBrokenError(f"{self._core.failed_steps} steps in a row have failed")

    def _publish(self, report: StepReport) -> None:
        self._transport.send(report)
        self._spans.ended(report)

    def _check_when_due(self) -> None:
        since = self._unchecked_since
        if since is not None and self._clock() - since >= CHECK_SECONDS:
            self._core.check()
            self._unchecked_since = None
