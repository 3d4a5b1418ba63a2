"""The port that Prometheus reads. Anybody may connect to it, so connections are few, short and never in the way."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
from socketserver import ThreadingTCPServer
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import MetricsHandler

from pagemill_common import logs

_log = logs.get("pagemill.metrics")


class MetricsPort:
    """An open port, served by threads of its own, so that a busy loop still answers."""

    def __init__(
        self, registry: CollectorRegistry, host: str, port: int, *, idle_seconds: float = 5.0, at_once: int = 8
    ) -> None:
        """Listens; port 0 takes a free one. Raises OSError where the address cannot be had.

        A connection that brings or takes nothing for `idle_seconds` is closed, and so is the oldest where one more
        than `at_once` comes.
        """
        handler: Any = MetricsHandler.factory(registry)
        handler.timeout = idle_seconds
        self._server = _Server(host, port, handler, at_once)
        self.address = f"{host}:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True, name="metrics port").start()

    def close(self) -> None:
        """Closes the port."""
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingTCPServer):
    """A thread for each connection."""

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, host: str, port: int, handler: Any, at_once: int) -> None:
        name = host.strip("[]") or "0.0.0.0"
        found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family, _, _, _, address = found[0]
        self._at_once = at_once
        self._open: dict[socket.socket, None] = {}
        self._ended = threading.Condition()
        super().__init__((str(address[0]), *address[1:]), handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Starts the connection's thread, once there is room for it."""
        with self._ended:
            if len(self._open) >= self._at_once:
                # A scrape takes milliseconds: the oldest is the one least likely to be one.
                with contextlib.suppress(OSError):
                    next(iter(self._open)).shutdown(socket.SHUT_RDWR)
                if not self._ended.wait_for(lambda: len(self._open) < self._at_once, timeout=1.0):
                    raise ConnectionRefusedError("too many connections")
            self._open[request] = None
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """The connection has ended, however."""
        super().shutdown_request(request)
        with self._ended:
            self._open.pop(request, None)
            self._ended.notify_all()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """One line of ours; a connection that broke is nobody's fault."""
        failure = sys.exc_info()[1]
        if isinstance(failure, OSError):
            _log.debug("a connection to the metrics port broke", reason=str(failure))
        else:
            _log.error("metrics could not be read", exc_info=failure)
