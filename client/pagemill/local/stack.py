"""Starts a local stack, watches it, and ends all of it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pagemill.local.process import Child
from pagemill.local.spec import (
    LOOPBACK,
    StackSpec,
    child_environment,
    redis_command,
    replica_command,
    router_command,
    threads_per_replica,
)
from pagemill.local.status import TierStatus, read_status

STALL_SECONDS = 300.0
"""A start without any progress for so long has failed."""
STOP_SECONDS = 20.0
"""What children get to end by themselves."""
POLL_SECONDS = 0.05

Report = Callable[[str, TierStatus], None]
"""Called with a child's name and status whenever the status has changed."""


class StackError(Exception):
    """The stack cannot start or go on; the message says why, `tail` shows the log of the child at fault."""

    def __init__(self, message: str, tail: list[str], folder: Path) -> None:
        super().__init__(message)
        self.message = message
        self.tail = tail
        self.folder = folder
        """Where the logs are; kept."""


@dataclass(slots=True)
class _Tier:
    child: Child
    status_file: Path
    status: TierStatus


class LocalStack:
    """Redis, replicas and routers on loopback. A context manager: all children have ended when it is left.

    Use it from the main thread: the kernel ties the children's lives to the thread that started them.
    """

    def __init__(self, spec: StackSpec, report: Report) -> None:
        self._spec = spec
        self._report = report
        self._cpus = processors()
        self._redis: Child | None = None
        self._replicas: list[_Tier] = []
        self._routers: list[_Tier] = []
        self._failed = False
        self.redis_url = spec.redis_url or ""
        """The Redis in use."""
        self.folder = Path(tempfile.mkdtemp(prefix="pagemill-"))
        """Logs and status files. Removed at the end unless something failed."""

    @property
    def router_addresses(self) -> list[str]:
        """host:port of the routers, once ready."""
        return [tier.status.address or "" for tier in self._routers]

    @property
    def replica_addresses(self) -> list[str]:
        """host:port of the replicas, once ready."""
        return [tier.status.address or "" for tier in self._replicas]

    @property
    def pids(self) -> dict[str, int]:
        """Process ids by name; an engine is `NAME engine`."""
        found = {"redis": self._redis.pid} if self._redis is not None else {}
        for tier in (*self._replicas, *self._routers):
            found[tier.child.name] = tier.child.pid
            if tier.status.engine_pid is not None:
                found[f"{tier.child.name} engine"] = tier.status.engine_pid
        return found

    def start(self) -> None:
        """Starts everything and returns when all of it is ready. Raises StackError."""
        if self._spec.redis_url is None:
            self._start_redis()
        for index in range(self._spec.replicas):
            name = f"replica-{index}"
            command = replica_command(self._spec, name, self.redis_url, self._status_file(name), self._cpus)
            self._replicas.append(self._tier(name, command))
        for index in range(self._spec.routers):
            name = f"router-{index}"
            port = self._spec.port if index == 0 else 0
            command = router_command(self._spec, name, port, self.redis_url, self._status_file(name))
            self._routers.append(self._tier(name, command))
        self._wait_ready()

    def check(self) -> None:
        """Raises StackError where a child has ended or says that it cannot go on."""
        if self._redis is not None and self._redis.returncode is not None:
            raise self._error(f"the embedded Redis {self._redis.exit_text()}", self._redis)
        for tier in (*self._replicas, *self._routers):
            if tier.child.returncode is not None:
                self._refresh(tier)
                why = f": {tier.status.error}" if tier.status.error else ""
                raise self._error(f"{tier.child.name} {tier.child.exit_text()}{why}", tier.child)

    def stop(self) -> None:
        """Ends all children: routers first, so that they stop taking requests, Redis last. Safe to call again."""
        with _patient():
            self._end([tier.child for tier in self._routers], STOP_SECONDS)
            self._end([tier.child for tier in self._replicas], STOP_SECONDS)
            if self._redis is not None:
                self._end([self._redis], 5.0)
            if not self._failed:
                shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> LocalStack:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _start_redis(self) -> None:
        port = free_port()
        self.redis_url = f"redis://{LOOPBACK}:{port}/0"
        self._redis = Child("redis", redis_command(port, self.folder), self._log("redis"), child_environment(1))
        self._report("redis", TierStatus(stage="starting"))
        deadline = time.monotonic() + 30
        while not answers_ping(port):
            self.check()
            if time.monotonic() > deadline:
                raise self._error("the embedded Redis does not answer", self._redis)
            time.sleep(POLL_SECONDS)
        self._report("redis", TierStatus(stage="ready", fraction=1.0, ready=True, address=f"{LOOPBACK}:{port}"))

    def _tier(self, name: str, command: list[str]) -> _Tier:
        environment = child_environment(threads_per_replica(self._spec, self._cpus))
        tier = _Tier(Child(name, command, self._log(name), environment), self._status_file(name), TierStatus())
        self._report(name, tier.status)
        return tier

    def _wait_ready(self) -> None:
        last_change = time.monotonic()
        tiers = [*self._replicas, *self._routers]
        while not all(tier.status.ready for tier in tiers):
            self.check()
            changed = [self._refresh(tier) for tier in tiers]
            if any(changed):
                last_change = time.monotonic()
            waited = time.monotonic() - last_change
            if waited > STALL_SECONDS:
                late = next(tier for tier in tiers if not tier.status.ready)
                raise self._error(f"{late.child.name} made no progress for {waited:.0f} s", late.child)
            time.sleep(POLL_SECONDS)

    def _refresh(self, tier: _Tier) -> bool:
        """Reads a tier's status; whether it has changed."""
        status = read_status(tier.status_file)
        if status == tier.status:
            return False
        tier.status = status
        self._report(tier.child.name, status)
        return True

    def _end(self, children: list[Child], seconds: float) -> None:
        for child in children:
            child.terminate()
        deadline = time.monotonic() + seconds
        late = [child for child in children if not child.wait(deadline - time.monotonic())]
        # The second signal says: at once.
        for child in late:
            child.terminate()
        deadline = time.monotonic() + 3
        for child in late:
            child.wait(deadline - time.monotonic())
        for child in children:
            child.kill()

    def _error(self, message: str, child: Child) -> StackError:
        self._failed = True
        return StackError(message, child.tail(), self.folder)

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def _status_file(self, name: str) -> Path:
        return self.folder / f"{name}.status.json"


def processors() -> int:
    """How many processors this process may use; all of them where the system cannot say."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def free_port() -> int:
    """A loopback port that nothing listens on at this moment."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def answers_ping(port: int) -> bool:
    """A Redis on a loopback port answers PING."""
    try:
        with socket.create_connection((LOOPBACK, port), timeout=1) as connection:
            connection.settimeout(1)
            connection.sendall(b"PING\r\n")
            return connection.recv(16).startswith(b"+PONG")
    except OSError:
        return False


@contextlib.contextmanager
def _patient() -> Iterator[None]:
    """Holds Ctrl-C and SIGTERM back, so that an impatient second one cannot leave children behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
