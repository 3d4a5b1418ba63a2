"""Start, health, drain and death of a replica, and callers that stop reading."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
import urllib.request
from pathlib import Path

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc

from pagemill.v1 import generation_pb2 as pb
from pagemill.v1 import generation_pb2_grpc, internal_pb2, replica_pb2
from pagemill_common.errors import MAX_VIOLATIONS
from pagemill_common.grpc.channel import open_channel
from support.fleet import Tier, smollm2, until
from support.replica import Replica, ask, failed, replica, rest, status

pytestmark = pytest.mark.model

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


async def serving(one: Replica, service: str = "") -> bool:
    stub = health_pb2_grpc.HealthStub(one.channel)
    reply = await stub.Check(health_pb2.HealthCheckRequest(service=service))
    return bool(reply.status == SERVING)


def finished_lines(one: Replica) -> list[dict[str, object]]:
    lines = [json.loads(line) for line in one.tier.log.splitlines() if line.startswith("{")]
    return [line for line in lines if line["message"] == "request finished"]


async def test_drain_lets_streams_finish_and_refuses_new_ones() -> None:
    async with replica("--drain-settle", "0.5", script="delay=0.01") as one:
        watch = one.control.WatchState(replica_pb2.WatchStateRequest(router="r"))
        await watch.read()
        running = one.generation.Generate(ask(150))
        await running.read()
        one.tier.send(signal.SIGTERM)
        await until(lambda: _not_serving(one), 2.0, "health says so at once")
        settled = one.generation.Generate(ask(2, request_id="settling"))
        assert (await rest(settled))[-1].HasField("finished"), "calls are taken while routers notice"

        async def told() -> bool:
            state = (await watch.read()).state
            return state.draining and not state.ready

        await until(told, 2.0, "watchers hear of it")
        await asyncio.sleep(0.6)
        refused = await one.fails(ask(2))
        assert (refused.code, refused.reason) == (grpc.StatusCode.UNAVAILABLE, "DRAINING")
        assert (await rest(running))[-1].finished.usage.completion_tokens == 150
        assert await one.tier.ended() == 0


async def _not_serving(one: Replica) -> bool:
    return not await serving(one)


async def test_drain_by_call_ends_the_process_too() -> None:
    async with replica("--max-stream-seconds", "60", "--default-timeout", "30") as one:
        reply = await one.control.Drain(replica_pb2.DrainRequest(reason="test"))
        assert reply.live_requests == 0
        assert 0 < reply.grace.seconds <= 45
        assert await one.tier.ended() == 0
        assert '"reason": "test"' in one.tier.log


async def test_stragglers_are_closed_before_the_time_is_up() -> None:
    flags = ["--max-stream-seconds", "8", "--default-timeout", "8", "--drain-margin", "7"]
    async with replica(*flags, script="delay=0.02") as one:
        call = one.generation.Generate(ask(2000))
        await call.read()
        one.tier.send(signal.SIGTERM)
        found = await status(call)
        assert (found.code, found.reason) == (grpc.StatusCode.UNAVAILABLE, "DRAINING")
        assert await one.tier.ended() == 0


async def test_second_signal_stops_at_once() -> None:
    async with replica(script="delay=0.02") as one:
        call = one.generation.Generate(ask(4000))
        await call.read()
        one.tier.send(signal.SIGTERM)
        await until(lambda: _not_serving(one), 2.0, "the drain has begun")
        one.tier.send(signal.SIGTERM)
        found = await status(call)
        assert found.code is grpc.StatusCode.UNAVAILABLE
        assert await one.tier.ended(within=10.0) == 0


async def test_killed_engine_ends_streams_readiness_and_process() -> None:
    async with replica(script="delay=0.01") as one:
        health = health_pb2_grpc.HealthStub(one.channel).Watch(health_pb2.HealthCheckRequest())
        assert (await health.read()).status == SERVING
        calls = [one.generation.Generate(ask(1000, request_id=f"r{i}")) for i in range(3)]
        for call in calls:
            await call.read()
            await call.read()
        waiting = one.generation.Generate(ask(1, token_ids=pb.TokenIds(ids=[7] * 8000)))
        os.kill(one.tier.status["engine_pid"], signal.SIGKILL)
        begun = time.monotonic()
        for call in calls:
            found = await status(call)
            assert (found.code, found.reason) == (grpc.StatusCode.UNAVAILABLE, "PARTIAL_OUTPUT")
            counts = next(d for d in found.details if isinstance(d, internal_pb2.PartialOutput)).tokens_per_choice
            assert counts[0] >= 1
        with contextlib.suppress(grpc.aio.AioRpcError):
            await rest(waiting)
        assert await waiting.code() is grpc.StatusCode.UNAVAILABLE
        with contextlib.suppress(grpc.aio.AioRpcError):
            assert (await health.read()).status == NOT_SERVING
        assert await one.tier.ended() == 1
        assert time.monotonic() - begun < 10
        assert "SIGKILL" in one.tier.status["error"]
        assert "the engine is gone" in one.tier.log


async def test_failed_step_is_internal_with_an_incident_in_the_log() -> None:
    async with replica(script="delay=0.002,fail_id=1234") as one:
        found = await status(one.generation.Generate(ask(4, token_ids=pb.TokenIds(ids=[5, 1234]))))
        assert (found.code, found.reason) == (grpc.StatusCode.INTERNAL, "INTERNAL")
        assert found.metadata["incident"] in one.tier.log
        assert (await rest(one.generation.Generate(ask(4))))[-1].HasField("finished")
        await one.idle()


async def test_engine_that_hangs_turns_readiness_off_and_timeouts_still_hold() -> None:
    async with replica("--stall-after", "1s", script="delay=0.002,hang_id=1234") as one:
        assert await serving(one)
        assert await serving(one, "pagemill.v1.GenerationService")
        request = ask(4, token_ids=pb.TokenIds(ids=[5, 1234]), timeout=Duration(seconds=2))
        found = await status(one.generation.Generate(request))
        assert (found.code, found.metadata["stage"]) == (grpc.StatusCode.DEADLINE_EXCEEDED, "prefill")
        await until(lambda: _not_serving(one), 5.0, "no progress, not ready")
        assert not (await one.state()).ready


async def test_engine_that_hangs_for_good_ends_streams_and_process() -> None:
    async with replica("--stall-after", "0.5s", "--stall-exit", "1.5s", script="delay=0.002,hang_id=1234") as one:
        running = one.generation.Generate(ask(4000))
        await running.read()
        hanging = one.generation.Generate(ask(4, token_ids=pb.TokenIds(ids=[5, 1234])))
        assert (await status(running)).reason == "PARTIAL_OUTPUT"
        found = await status(hanging)
        assert (found.code, found.reason) == (grpc.StatusCode.UNAVAILABLE, "REPLICA_LOST")
        assert await one.tier.ended() == 1
        assert "has made no step for" in one.tier.status["error"]


async def test_idle_replica_stays_ready() -> None:
    async with replica("--stall-after", "0.5s", "--stall-exit", "0.5s") as one:
        await asyncio.sleep(1.5)
        assert await serving(one)


async def test_timeout_tells_queue_and_prefill() -> None:
    async with replica("--max-running", "1", "--token-budget", "64", script="delay=0.02,token_delay=0.001") as one:
        running = one.generation.Generate(ask(2000, token_ids=pb.TokenIds(ids=[9] * 16)))
        await running.read()
        short = Duration(nanos=200_000_000)
        queued = await status(one.generation.Generate(ask(4, timeout=short)))
        assert queued.metadata["stage"] == "queue"
        running.cancel()
        await one.idle()
        long = pb.TokenIds(ids=range(1000, 5000))
        prefilling = await status(one.generation.Generate(ask(4, token_ids=long, timeout=short)))
        assert prefilling.metadata["stage"] == "prefill"
        await one.idle()


async def test_reader_that_stops_is_ended_and_nobody_else_slowed() -> None:
    async with replica("--max-unread", "16KiB", script="delay=0.0005,context=200000,blocks=20000") as one:
        # A window of its own, so that what the transport buffers is known to be small.
        options = [("grpc.http2.lookahead_bytes", 1024), ("grpc.http2.bdp_probe", 0)]
        async with grpc.aio.insecure_channel(one.tier.address, options=options) as channel:
            stub = generation_pb2_grpc.GenerationServiceStub(channel)
            stuck = stub.Generate(ask(150_000))
            await stuck.read()
            lively = one.generation.Generate(ask(400))
            assert (await rest(lively))[-1].finished.usage.completion_tokens == 400

            async def ended() -> bool:
                return not (await one.state()).running

            await until(ended, 60.0, "the stuck stream's request has left the engine")
            await one.idle()

            def told() -> bool:
                return any(line["reason"] == "SLOW_READER" for line in finished_lines(one))

            await until(told, 5.0, "the call has left although its caller still reads nothing")
            found = await status(stuck)
            assert (found.code, found.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "SLOW_READER")


async def test_one_line_and_the_metrics_tell_of_every_request() -> None:
    async with replica() as one:
        trace_id = "0af7651916cd43dd8448eb211c80319c"
        header = [("traceparent", f"00-{trace_id}-b7ad6b7169203331-01")]
        await rest(one.generation.Generate(ask(5, request_id="told"), metadata=header))
        await one.fails(ask(5, model="other"))
        await until(lambda: len(finished_lines(one)) == 2, 3.0, "two lines")
        first, second = finished_lines(one)
        assert (first["request_id"], first["trace_id"], first["model"]) == ("told", trace_id, "smollm2")
        assert (first["prompt_tokens"], first["completion_tokens"], first["reason"]) == (40, 5, "max_tokens")
        assert second["request_id"], "drawn for one that is refused too"
        assert first["ttft_ms"]
        assert first["itl_ms"]
        assert (second["code"], second["reason"]) == ("NOT_FOUND", "MODEL_NOT_FOUND")
        url = f"http://{one.tier.status['metrics_address']}/metrics"
        text = (await asyncio.to_thread(urllib.request.urlopen, url)).read().decode()
        for name in (
            "gen_ai_server_time_to_first_token_seconds_count",
            'pagemill_inter_token_latency_seconds_count{model="smollm2"}',
            "pagemill_replica_kv_use",
            "pagemill_replica_running",
            'pagemill_outcome="max_tokens"',
        ):
            assert name in text, name
        assert "told" not in text, "no label may hold an id"


async def test_the_line_of_a_refused_or_unfinished_request_tells_what_is_known() -> None:
    async with replica(script="delay=0.02") as one:
        await one.fails(ask(100_000, request_id="long"))
        call = one.generation.Generate(ask(4000, request_id="left"))
        await call.read()
        call.cancel()
        late = ask(4000, request_id="late", timeout=Duration(nanos=200_000_000))
        assert (await status(one.generation.Generate(late))).code is grpc.StatusCode.DEADLINE_EXCEEDED
        await until(lambda: len(finished_lines(one)) == 3, 5.0, "three lines")
        lines = {line["request_id"]: line for line in finished_lines(one)}
        assert (lines["long"]["reason"], lines["long"]["model"]) == ("TOO_LONG", "smollm2")
        assert lines["long"]["prompt_tokens"] == 40
        assert "queue_ms" not in lines["long"]
        assert (lines["left"]["code"], lines["late"]["code"]) == ("CANCELLED", "DEADLINE_EXCEEDED")
        for name in ("left", "late"):
            assert 0 <= lines[name]["queue_ms"] < lines[name]["ttft_ms"] <= lines[name]["duration_ms"]  # type: ignore[operator]
        assert None not in [value for line in lines.values() for value in line.values()]


async def test_status_file_tells_of_loading_and_calls_wait_outside(tmp_path: Path) -> None:
    tier = _tier(tmp_path, "--fake-runner", "load_delay=2").start()
    try:
        await until(lambda: tier.status.get("address"), 20.0, "an address before the model is loaded")
        async with open_channel(tier.address) as channel:
            one = Replica(tier, channel)
            assert not await serving(one)
            found = await one.fails(ask(1))
            assert (found.code, found.reason) == (grpc.StatusCode.UNAVAILABLE, "NO_REPLICA")
            await until(lambda: tier.status["stage"] == "loading weights", 10.0, "the engine's stage is told")
            await tier.ready()
            assert await serving(one)
    finally:
        await asyncio.to_thread(tier.close)


async def test_signal_while_loading_stops_at_once(tmp_path: Path) -> None:
    tier = _tier(tmp_path, "--fake-runner", "load_delay=60").start()
    try:
        await until(lambda: tier.status.get("stage") == "loading weights", 20.0, "it loads")
        tier.send(signal.SIGTERM)
        assert await tier.ended(within=10.0) == 0
    finally:
        await asyncio.to_thread(tier.close)


async def test_signals_after_the_end_of_the_work_change_no_exit_status(tmp_path: Path) -> None:
    tier = _tier(tmp_path, "--fake-runner", "load_delay=60").start()
    try:
        await until(lambda: tier.status.get("stage") == "loading weights", 20.0, "it loads")
        tier.send(signal.SIGTERM)
        await until(lambda: tier.status.get("stage") == "stopped", 20.0, "it stops")
        while tier.running:
            tier.send(signal.SIGTERM)
            await asyncio.sleep(0)
        assert await tier.ended() == 0
    finally:
        await asyncio.to_thread(tier.close)


async def test_status_file_that_cannot_be_written_any_more_changes_nothing_else() -> None:
    async with replica(script="delay=0.01") as one:
        running = one.generation.Generate(ask(50))
        await running.read()
        one.tier.status_file.unlink()
        (one.tier.status_file / "in the way").mkdir(parents=True)
        one.tier.send(signal.SIGTERM)
        assert (await rest(running))[-1].HasField("finished")
        assert await one.tier.ended() == 0
        lines = [json.loads(line) for line in one.tier.log.splitlines()]
        errors = [line["message"] for line in lines if line["level"] == "error"]
        assert errors == ["the status file cannot be written"]


async def test_status_file_that_cannot_be_written_is_named_and_exits_with_2(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 250)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pagemill_replica", "--model", str(smollm2()), "--listen", "127.0.0.1:0"),
        *("--log-format", "json", "--status-file", str(path)),
        stderr=asyncio.subprocess.PIPE,
    )
    _, log = await process.communicate()
    assert process.returncode == 2
    (line,) = log.decode().splitlines()
    assert json.loads(line)["error"] == f"--status-file {path}: File name too long"


async def test_model_that_cannot_be_read_is_one_clear_line_and_exit_2(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"not a model at all" * 100)
    tier = _tier(tmp_path, model=str(path)).start()
    try:
        assert await tier.ended() == 2
        assert tier.status["error"].startswith(f"--model: {path}")
        (line,) = tier.log.splitlines()
        assert json.loads(line)["error"] == tier.status["error"]
    finally:
        await asyncio.to_thread(tier.close)


async def test_setting_that_only_the_engine_can_judge_is_named_without_a_traceback_and_exits_with_2(
    tmp_path: Path,
) -> None:
    tier = _tier(tmp_path, "--kv-memory", "100TiB").start()
    try:
        assert await tier.ended(within=90.0) == 2
        assert tier.status["error"].startswith("--kv-memory: 102400.0 GiB asked for")
        assert "Traceback" not in tier.log
    finally:
        await asyncio.to_thread(tier.close)


async def test_port_that_is_taken_is_named(tmp_path: Path) -> None:
    async with replica() as one:
        tier = _tier(tmp_path, "--listen", one.tier.address).start()
        try:
            assert await tier.ended() == 1
            assert tier.status["error"] == f"--listen {one.tier.address}: Address already in use"
            assert "E1" not in tier.log, "gRPC's own lines"
            assert all(json.loads(line) for line in tier.log.splitlines())
        finally:
            await asyncio.to_thread(tier.close)


async def test_wrong_flag_exits_with_2_and_names_it(tmp_path: Path) -> None:
    tier = _tier(tmp_path, "--kv-memory", "lots").start()
    assert await tier.ended() == 2
    assert "--kv-memory: 'lots' is not a size" in tier.log


def _tier(folder: Path, *args: str, model: str | None = None) -> Tier:
    flags = ["--listen", "127.0.0.1:0", "--model", model or str(smollm2()), "--drain-settle", "0"]
    return Tier("pagemill_replica", "two", [*flags, *args], folder)


async def test_lost_connection_counts_as_a_cancel() -> None:
    async with replica(script="delay=0.01") as one:
        async with open_channel(one.tier.address) as other:
            call = generation_pb2_grpc.GenerationServiceStub(other).Generate(ask(5000))
            await call.read()
        await one.idle(within=3.0)


async def test_many_violations_fit_one_status() -> None:
    async with replica() as one:
        request = pb.GenerateRequest(token_ids=pb.TokenIds(ids=[50_000 + i for i in range(500)]))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await one.generation.GenerateText(pb.GenerateTextRequest(request=request))
        found = failed(caught.value)
        assert int(found.metadata["violations"]) > MAX_VIOLATIONS
        bad = next(d for d in found.details if isinstance(d, error_details_pb2.BadRequest))
        assert len(bad.field_violations) == MAX_VIOLATIONS
