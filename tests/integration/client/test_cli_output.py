"""What the commands print: tables, pieces, JSON, and what they say where something is in the way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
import pytest
from grpc_health.v1 import health_pb2
from typer.testing import CliRunner, Result

from pagemill.cli.app import app
from pagemill.cli.failures import ExitCode
from pagemill.v1 import admin_pb2, admin_pb2_grpc
from pagemill.v1 import generation_pb2 as pb
from pagemill_common import errors
from support.fake_service import FakeServer, delta, fail, finished, started

REFUSED = (
    "unavailable: failed to connect to all addresses; last error: UNKNOWN: ipv4:10.244.103.117:8460: "
    "Failed to connect to remote host: Connection refused"
)


def run(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, list(arguments), input=stdin)


def replica(
    name: str, standing: admin_pb2.ReplicaStanding.ValueType, reason: str = "", model: str = "smollm2"
) -> admin_pb2.ReplicaStatus:
    status = admin_pb2.ReplicaStatus(address="10.244.3.117:8460", standing=standing, reason=reason)
    status.state.name = name
    status.state.capacity_blocks = 20_000
    status.state.used_blocks = 5_000
    status.state.committed_blocks = 20_000
    status.state.tokens_per_second = 123.4
    status.state.running = 99
    status.state.model.name = model
    return status


@contextmanager
def router(*replicas: admin_pb2.ReplicaStatus, why: str = "") -> Iterator[str]:
    """A router that knows these replicas, and explains each with `why`; its address."""

    class Admin(admin_pb2_grpc.AdminServiceServicer):
        def ListReplicas(self, request, context):
            return admin_pb2.ListReplicasResponse(replicas=replicas, router="router-0")

        def ExplainRoute(self, request, context):
            candidates = [
                admin_pb2.RouteCandidate(replica=one.state.name, rank=-1, reason=why, need_blocks=512, cost=0.0879)
                for one in replicas
            ]
            return admin_pb2.ExplainRouteResponse(candidates=candidates, prompt_tokens=1, expected_output_tokens=2)

    server = grpc.server(ThreadPoolExecutor(2))
    admin_pb2_grpc.add_AdminServiceServicer_to_server(Admin(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait()


# Tables.


def test_the_table_of_replicas_fits_80_columns_and_gives_reasons_below() -> None:
    with router(
        replica("pagemill-replica-0", admin_pb2.REPLICA_STANDING_READY),
        replica("pagemill-replica-1", admin_pb2.REPLICA_STANDING_LOST, REFUSED),
        replica("pagemill-replica-2", admin_pb2.REPLICA_STANDING_CORDONED, "cordoned: disk"),
        replica("pagemill-replica-3", admin_pb2.REPLICA_STANDING_DRAINING, "draining"),
    ) as address:
        result = run("replicas", "-t", address)
    lines = result.stdout.splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert lines[0].split() == ["NAME", "STANDING", "ADDRESS", "KV", "COMMIT", "RUN", "WAIT", "TOK/S"]
    assert lines[2].split()[:2] == ["pagemill-replica-1", "lost"]
    assert lines[5:] == ["pagemill-replica-1: unavailable: Connection refused", "pagemill-replica-2: disk"]
    assert "model smollm2" in result.stderr


def test_models_stand_in_the_table_where_there_are_several() -> None:
    with router(
        replica("replica-0", admin_pb2.REPLICA_STANDING_READY),
        replica("replica-1", admin_pb2.REPLICA_STANDING_READY, model="qwen3"),
    ) as address:
        lines = run("replicas", "-t", address).stdout.splitlines()
    assert [line.split()[-1] for line in lines] == ["MODEL", "smollm2", "qwen3"]


def test_a_router_without_replicas_says_so() -> None:
    with router() as address:
        result = run("replicas", "-t", address)
    assert result.stdout == ""
    assert "the router knows no replica" in result.stderr


def test_the_explanation_fits_80_columns_and_gives_long_reasons_below() -> None:
    known = replica("replica-0", admin_pb2.REPLICA_STANDING_LOST)
    with router(known, why="0 of 17 blocks cached, fill 0.088") as address:
        short = run("explain", "hi", "-t", address)
    with router(known, why=REFUSED) as address:
        long = run("explain", "hi", "-t", address)
    assert "0 of 17 blocks cached, fill 0.088" in short.stdout.splitlines()[1]
    assert long.stdout.splitlines()[2:] == ["replica-0: unavailable: Connection refused"]
    assert all(len(line) <= 80 for line in (short.stdout + long.stdout).splitlines())
    assert "1 prompt token, 2 output tokens counted on" in short.stderr


# JSON.


def test_lines_of_json_can_be_computed_with(fake: FakeServer) -> None:
    status = replica("replica-0", admin_pb2.REPLICA_STANDING_READY)
    status.age.FromMilliseconds(250)
    with router(status) as address:
        first, last = map(json.loads, run("replicas", "--json", "-t", address).stdout.splitlines())
    assert first["age"] == 0.25
    assert first["standing"] == "REPLICA_STANDING_READY"
    assert last["router"] == "router-0"
    *_, end = map(json.loads, run("generate", "hi", "--json", "-t", fake.address).stdout.splitlines())
    assert (end["event"], end["request_id"]) == ("finished", "r-1")


# Tokens.


def test_pieces_are_a_line_each(fake: FakeServer) -> None:
    assert run("tokenize", "a\n", "--pieces", "-t", fake.address).stdout == '97\t"a"\n10\t"\\n"\n'


def test_no_text_has_no_tokens(fake: FakeServer) -> None:
    assert run("tokenize", "", "-t", fake.address).stdout == ""
    assert run("tokenize", "", "--count", "-t", fake.address).stdout == "0\n"
    assert "1 token of tiny" in run("tokenize", "a", "-t", fake.address).stderr


def test_detokenize(fake: FakeServer) -> None:
    assert run("detokenize", "97", "98", "-t", fake.address).stdout == "ab\n"
    assert run("detokenize", "-", "-t", fake.address, stdin="97, 98\n10").stdout == "ab\n"
    assert json.loads(run("detokenize", "97,98", "--json", "-t", fake.address).stdout) == {"text": "ab"}
    assert run("detokenize", "ab", "-t", fake.address).exit_code == ExitCode.USAGE
    assert run("detokenize", "-t", fake.address, "--", "-1").exit_code == ExitCode.REFUSED


# What is in the way.


def test_a_server_that_is_not_ready_is_not_called_absent(fake: FakeServer) -> None:
    fake.health.set("", health_pb2.HealthCheckResponse.NOT_SERVING)
    result = run("generate", "hi", "-t", fake.address)
    assert result.exit_code == ExitCode.BUSY
    assert "is up, but not ready" in result.stderr
    assert "`pagemill replicas` shows why" in result.stderr
    assert "pagemill serve" not in result.stderr
    for command in (["replicas"], ["models"], ["tokenize", "hi"], ["explain", "hi"]):
        assert run(*command, "-t", fake.address).exit_code == 0


@pytest.mark.parametrize("target", ["127.0.0.1", ":::::", "http://router:1"])
def test_a_wrong_target_is_wrong_usage(target: str) -> None:
    result = run("models", "-t", target)
    assert result.exit_code == ExitCode.USAGE
    assert "write host:port, such as" in result.stderr


def test_all_values_that_cannot_be_sent_are_named_by_their_flags(fake: FakeServer) -> None:
    result = run("generate", "hi", "--temperature", "900", "--top-k", "-1", "-n", "0", "-t", fake.address, "--json")
    assert result.exit_code == ExitCode.REFUSED
    assert result.stderr.splitlines() == [
        "error: --top-k (sampling.top_k): must be a whole number from 0 to 4294967295, not -1 (and 2 more)",
        "  --temperature (sampling.temperature): must be in [0, 100], not 900",
        "  --max-tokens (stop.max_tokens): must be at least 1",
    ]
    error = json.loads(result.stdout)["error"]
    assert error["reason"] == "INVALID_FIELD"
    assert [v["field"] for v in error["violations"]] == ["sampling.top_k", "sampling.temperature", "stop.max_tokens"]


def test_a_call_that_only_routers_answer_says_that_a_replica_was_asked() -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    result = run("replicas", "-t", f"127.0.0.1:{port}")
    server.stop(None).wait()
    assert result.exit_code == ExitCode.REFUSED
    assert "a replica was asked, and only routers answer it" in result.stderr
    assert "name a router with --target" in result.stderr


def test_a_cordon_of_a_lost_replica_says_both() -> None:
    class Admin(admin_pb2_grpc.AdminServiceServicer):
        def Cordon(self, request, context):
            return admin_pb2.CordonResponse(replica=replica("replica-0", admin_pb2.REPLICA_STANDING_LOST))

    server = grpc.server(ThreadPoolExecutor(1))
    admin_pb2_grpc.add_AdminServiceServicer_to_server(Admin(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    said = run("cordon", "replica-0", "-t", f"127.0.0.1:{port}").stdout
    server.stop(None).wait()
    assert said.startswith("replica-0 is cordoned, and lost, on this router only\n")


def test_a_timeout_without_a_replica_points_to_the_replicas(fake: FakeServer) -> None:
    fake.generate = lambda request, context: fail(errors.deadline("queue"), context)
    said = run("generate", "hi", "-t", fake.address).stderr
    assert said.startswith("error: the timeout passed while the request waited for a replica\n")
    assert "`pagemill replicas`" in said


def test_one_token_is_not_several(fake: FakeServer) -> None:
    def one(request: pb.GenerateRequest, context: grpc.ServicerContext) -> Iterator[pb.GenerateResponse]:
        end = finished(1)
        end.finished.usage.prompt_tokens = 1
        yield from (started(), delta("a", 1), end)

    fake.generate = one
    assert "1 prompt token (2 cached), 1 generated" in run("generate", "hi", "--stats", "-t", fake.address).stderr


@pytest.mark.parametrize("options", [[], ["--json"]], ids=["text", "json"])
def test_a_reader_that_has_gone_is_status_141(fake: FakeServer, options: list[str]) -> None:
    def many(request: pb.GenerateRequest, context: grpc.ServicerContext) -> Iterator[pb.GenerateResponse]:
        yield started()
        for i in range(20_000):
            yield delta("line of text\n", 1, position=i)
        yield finished(20_000)

    fake.generate = many
    process = subprocess.Popen(
        [sys.executable, "-c", "from pagemill.cli import main; main()", "generate", "hi", "-t", fake.address, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # As people have it: what is left in Python's buffer must not fail at the end.
        env={key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"},
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline()
    process.stdout.close()
    said = process.stderr.read()
    assert process.wait(timeout=30) == ExitCode.PIPE_CLOSED
    process.stderr.close()
    assert said == b""
