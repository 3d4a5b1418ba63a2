"""What a replica's log tells of its life from start to end."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from pagemill_common.capacity.server import RedisServer, free_port
from support.fleet import Tier, smollm2, until

pytestmark = pytest.mark.model


@asynccontextmanager
async def started(folder: Path, redis_url: str, script: str = "delay=0.005") -> AsyncIterator[Tier]:
    """A replica that has been started and reports to a Redis."""
    flags = ["--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0", "--model", str(smollm2())]
    flags += ["--drain-settle", "0", "--redis-url", redis_url, "--fake-runner", script]
    tier = Tier("pagemill_replica", "one", flags, folder).start()
    try:
        yield tier
    finally:
        await asyncio.to_thread(tier.close)


def lines(tier: Tier) -> list[dict[str, Any]]:
    return [json.loads(line) for line in tier.log.splitlines()]


async def test_a_life_from_start_to_end(tmp_path: Path) -> None:
    with RedisServer("valkey") as server:
        async with started(tmp_path, server.url) as tier:
            await tier.ready()
            await until(lambda: "joined the pool" in tier.log, 10.0, "it joins the pool")
            metrics, address = tier.status["metrics_address"], tier.address
            tier.send(signal.SIGTERM)
            assert await tier.ended() == 0
        told = {line["message"]: line for line in lines(tier)}
        wanted = ("redis answers", "listening", "engine ready", "joined the pool", "draining", "drained")
        assert set(wanted) <= set(told)
        assert told["redis answers"]["address"] == f"127.0.0.1:{server.port}"
        assert (told["listening"]["address"], told["listening"]["metrics"]) == (address, metrics)
        assert told["joined the pool"]["address"] == address
        last = lines(tier)[-1]
        assert (last["message"], last["exit_status"]) == ("replica stopped", 0)


async def test_a_redis_that_is_down_is_told_while_the_model_loads_and_without_its_password(tmp_path: Path) -> None:
    port = free_port()
    url = f"redis://:secret@127.0.0.1:{port}/0"
    async with started(tmp_path, url, "load_delay=60") as tier:
        await until(lambda: tier.status.get("stage") == "loading weights", 30.0, "it loads")
        await until(lambda: "redis does not answer" in tier.log, 10.0, "it says so")
        line = next(line for line in lines(tier) if line["message"].startswith("redis does not answer"))
        assert (line["level"], line["address"]) == ("warning", f"127.0.0.1:{port}")
        assert line["reason"].startswith("connection: ")
        tier.send(signal.SIGTERM)
        assert await tier.ended() == 0
        assert lines(tier)[-1]["message"] == "replica stopped"
        assert "secret" not in tier.log
