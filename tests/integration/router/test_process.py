"""The router as a process: status file, metrics, health, traces in log lines, signals."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from integration.router.conftest import question

from pagemill.v1 import GenerationServiceStub
from support.fake_replica import FakeReplica, text_of, until


@asynccontextmanager
async def router_process(replica: FakeReplica, folder: Path, *flags: str) -> AsyncIterator[RouterProcess]:
    status = folder / "status.json"
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "pagemill_router", "--listen", "127.0.0.1:0", "--name", "router-0"),
        *("--replicas", replica.address, "--status-file", str(status), "--metrics-listen", "127.0.0.1:0"),
        *("--log-format", "json", "--drain-settle", "0.3"),
        *flags,
        stderr=asyncio.subprocess.PIPE,
    )
    running = RouterProcess(process, status)
    try:
        await until(lambda: running.told.get("ready") is True, 60)
        yield running
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


class RouterProcess:
    def __init__(self, process: asyncio.subprocess.Process, status: Path) -> None:
        self.process = process
        self._status = status

    @property
    def told(self) -> dict[str, Any]:
        return dict(json.loads(self._status.read_text())) if self._status.exists() else {}

    async def log(self) -> list[dict[str, Any]]:
        """Every line, once the process has ended."""
        assert self.process.stderr is not None
        lines = (await self.process.stderr.read()).decode().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]


async def test_sigterm_drains_and_exits_with_0(tmp_path: Path) -> None:
    async with FakeReplica(pace=0.02) as replica, router_process(replica, tmp_path) as router:
        assert router.told["pid"] == router.process.pid
        async with grpc.aio.insecure_channel(router.told["address"]) as channel:
            stub = GenerationServiceStub(channel)
            health = health_pb2_grpc.HealthStub(channel)
            watch = health.Watch(health_pb2.HealthCheckRequest())
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
            streaming = stub.Generate(question(max_tokens=60))
            await streaming.read()
            router.process.send_signal(signal.SIGTERM)
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
            late = "".join([message.delta.text async for message in stub.Generate(question(max_tokens=2))])
            assert late == text_of(2)
            watch.cancel()
            messages = []
            while (message := await streaming.read()) is not grpc.aio.EOF:
                messages.append(message)
            assert "".join(one.delta.text for one in messages) == text_of(60)
            assert messages[-1].HasField("finished")
        assert await asyncio.wait_for(router.process.wait(), 20) == 0
        assert router.told["stage"] == "stopped"


async def test_a_status_file_that_cannot_be_written_any_more_cuts_no_stream(tmp_path: Path) -> None:
    async with FakeReplica(pace=0.02) as replica, router_process(replica, tmp_path) as router:
        async with grpc.aio.insecure_channel(router.told["address"]) as channel:
            streaming = GenerationServiceStub(channel).Generate(question(max_tokens=60))
            await streaming.read()
            (tmp_path / "status.json").unlink()
            (tmp_path / "status.json" / "in the way").mkdir(parents=True)
            router.process.send_signal(signal.SIGTERM)
            messages = []
            while (message := await streaming.read()) is not grpc.aio.EOF:
                messages.append(message)
            assert messages[-1].HasField("finished")
        assert await asyncio.wait_for(router.process.wait(), 20) == 0
        assert [line["message"] for line in await router.log() if line["level"] == "error"] == [
            "the status file cannot be written"
        ]


async def test_signals_do_nothing_once_the_work_is_done(tmp_path: Path) -> None:
    async with FakeReplica() as replica, router_process(replica, tmp_path, "--drain-settle", "0") as router:
        router.process.send_signal(signal.SIGTERM)
        await until(lambda: router.told["stage"] == "stopped")
        while router.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                router.process.send_signal(signal.SIGTERM)
            await asyncio.sleep(0.02)
        assert router.process.returncode == 0, await router.log()


async def test_a_status_file_that_cannot_be_written_ends_with_2_and_names_the_flag(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 250)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "pagemill_router", "--listen", "127.0.0.1:0", "--replicas", "127.0.0.1:1", "--log-format", "json"),
        *("--status-file", str(path)),
        stderr=asyncio.subprocess.PIPE,
    )
    _, log = await process.communicate()
    assert process.returncode == 2
    (line,) = log.decode().splitlines()
    assert json.loads(line)["error"] == f"--status-file {path}: File name too long"


async def test_a_second_sigterm_ends_at_once(tmp_path: Path) -> None:
    async with FakeReplica(pace=0.05) as replica, router_process(replica, tmp_path, "--drain-settle", "60") as router:
        async with grpc.aio.insecure_channel(router.told["address"]) as channel:
            streaming = GenerationServiceStub(channel).Generate(question(max_tokens=8000))
            await streaming.read()
            router.process.send_signal(signal.SIGTERM)
            await until(lambda: router.told["stage"] == "draining")
            router.process.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(router.process.wait(), 20) == 0
            with pytest.raises(grpc.aio.AioRpcError):
                await read_to_the_end(streaming)
        await until(lambda: replica.seen[0].outcome == "cancelled")


async def read_to_the_end(call: Any) -> None:
    while await call.read() is not grpc.aio.EOF:
        pass


async def test_a_finished_call_is_one_log_line_and_counts_in_the_metrics(tmp_path: Path) -> None:
    trace = "0af7651916cd43dd8448eb211c80319c"
    async with FakeReplica() as replica, router_process(replica, tmp_path) as router:
        async with grpc.aio.insecure_channel(router.told["address"]) as channel:
            stub = GenerationServiceStub(channel)
            metadata = (("traceparent", f"00-{trace}-b7ad6b7169203331-01"),)
            async for _ in stub.Generate(question(max_tokens=3, request_id="mine"), metadata=metadata):
                pass
            for wrong in (question(model="nobody"), question("hello", max_tokens=1_000_000)):
                with pytest.raises(grpc.aio.AioRpcError):
                    await stub.Generate(wrong).read()
        url = f"http://{router.told['metrics_address']}/metrics"
        text = await asyncio.to_thread(lambda: urllib.request.urlopen(url).read().decode())
        assert 'pagemill_requests_total{code="OK",method="Generate",model="tiny"} 1.0' in text
        assert 'reason="MODEL_NOT_FOUND"' in text
        assert 'pagemill_router_admission_mode{mode="local"} 1.0' in text
        assert 'pagemill_router_replicas{standing="ready"} 1.0' in text
        assert "gen_ai_server_time_to_first_token_seconds_count" in text
        assert 'pagemill_inter_token_latency_seconds_count{model="tiny"} 2.0' in text
        assert str(replica.seen[0].metadata["traceparent"]).split("-")[1] == trace
        router.process.send_signal(signal.SIGTERM)
        await router.process.wait()
        lines = [line for line in await router.log() if line["message"] == "request finished"]
        told = [(line["code"], line["trace_id"] == trace, line.get("model")) for line in lines]
        assert told == [("OK", True, "tiny"), ("NOT_FOUND", False, None), ("OUT_OF_RANGE", False, "tiny")]
        assert (lines[0]["request_id"], lines[0]["replica"], lines[0]["completion_tokens"]) == ("mine", "r0", 3)
        assert 0 < lines[0]["ttft_ms"] <= lines[0]["duration_ms"]
        assert lines[2]["prompt_tokens"] == lines[0]["prompt_tokens"] == 5


async def test_an_address_that_is_taken_ends_with_1_and_says_so(tmp_path: Path) -> None:
    async with FakeReplica() as replica:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "pagemill_router", "--listen", replica.address, "--replicas", replica.address),
            *("--log-format", "json", "--status-file", str(tmp_path / "status.json")),
            stderr=asyncio.subprocess.PIPE,
        )
        _, log = await process.communicate()
        assert process.returncode == 1
        (line,) = log.decode().splitlines()
        assert json.loads(line)["error"] == f"--listen {replica.address}: Address already in use"
        assert json.loads((tmp_path / "status.json").read_text())["error"] == json.loads(line)["error"]


async def test_a_metrics_address_that_is_taken_ends_with_1_and_says_so() -> None:
    async with FakeReplica() as replica:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "pagemill_router", "--listen", "127.0.0.1:0", "--replicas", replica.address),
            *("--log-format", "json", "--metrics-listen", replica.address),
            stderr=asyncio.subprocess.PIPE,
        )
        _, log = await process.communicate()
        assert process.returncode == 1
        told = json.loads(log.decode().splitlines()[-1])
        assert told["error"] == f"--metrics-listen {replica.address}: Address already in use"
