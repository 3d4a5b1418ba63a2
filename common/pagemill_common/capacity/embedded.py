"""`python -m pagemill_common.capacity.embedded`: the server of a local stack, until SIGTERM or until the parent has
gone.

When the server answers, one line of JSON goes to standard output: {"host", "port", "url", "pid"}.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from pagemill_common.capacity.server import (
    HOST,
    RedisServer,
    ServerStartError,
    answers,
    command_line,
    free_port,
    server_binary,
)

__all__ = ["RedisServer", "ServerStartError", "main"]

_PR_SET_PDEATHSIG = 1
_POLL = 0.2
_START_TIMEOUT = 20.0


def die_with_parent() -> None:
    """Has Linux send SIGTERM to this process when its parent dies. Elsewhere nothing happens: the parent's loop has
    to do.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


class _Stop:
    def __init__(self) -> None:
        self.requested = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._request)

    def _request(self, number: int, frame: FrameType | None) -> None:
        self.requested = True


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the server; returns the exit status: 0 after a stop, 1 when it did not start or ended by itself."""
    parser = argparse.ArgumentParser(prog="pagemill_common.capacity.embedded", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="port on loopback; 0 picks a free one")
    parser.add_argument("--dir", type=Path, default=Path(), help="directory for the log file")
    options = parser.parse_args(argv)
    parent = os.getppid()
    stop = _Stop()
    port = options.port or free_port()
    try:
        if answers(port, 0.2):
            raise ServerStartError(f"port {port} is taken")
        options.dir.mkdir(parents=True, exist_ok=True)
        command = command_line(server_binary("valkey"), port, options.dir)
    except (ServerStartError, OSError) as error:
        sys.stderr.write(f"embedded: {error}\n")
        return 1
    # This process has one thread and no gRPC: running code between fork and exec is safe here.
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, preexec_fn=die_with_parent)
    try:
        return _watch(server, port, parent, stop)
    finally:
        if server.poll() is None:
            server.terminate()
        try:
            server.wait(5)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _watch(server: subprocess.Popen[bytes], port: int, parent: int, stop: _Stop) -> int:
    deadline = time.monotonic() + _START_TIMEOUT
    ready = False
    while not stop.requested and os.getppid() == parent:
        if server.poll() is not None:
            sys.stderr.write(f"embedded: the server ended with status {server.returncode}\n")
            return 1
        if ready:
            time.sleep(_POLL)
        elif answers(port, 0.2):
            ready = True
            line = {"host": HOST, "port": port, "url": f"redis://{HOST}:{port}/0", "pid": server.pid}
            sys.stdout.write(json.dumps(line) + "\n")
            sys.stdout.flush()
        elif time.monotonic() > deadline:
            sys.stderr.write(f"embedded: no answer on port {port} after {_START_TIMEOUT:.0f} s\n")
            return 1
        else:
            time.sleep(0.01)
    return 0


if __name__ == "__main__":
    sys.exit(main())
