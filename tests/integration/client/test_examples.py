"""The examples of the documentation do what they say: every Python block, every grpcurl line, every command."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from google.protobuf import descriptor_pool, json_format, message_factory
from grpc_channelz.v1 import channelz_pb2
from grpc_health.v1 import health_pb2

from pagemill.cli.app import app
from pagemill.v1 import admin_pb2
from pagemill.v1 import generation_pb2 as pb
from pagemill_common import errors
from support.fake_service import FakeServer, fail, without_pause

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
ADDRESSES = re.compile(r"(?:localhost|127\.0\.0\.1):8450")
SERVED = (pb, admin_pb2, health_pb2, channelz_pb2)
"""Imported so that the descriptor pool knows their services."""


def blocks(language: str) -> list[str]:
    """All code blocks of a language."""
    fenced = re.compile(rf"^```{language}\n(.*?)^```", re.MULTILINE | re.DOTALL)
    return [block for page in PAGES for block in fenced.findall(page.read_text())]


def block_with(text: str) -> str:
    (found,) = [block for block in blocks("python") if text in block]
    return found


def run(example: str, server: FakeServer) -> None:
    """Runs a block by itself, as one that copies it would, against a server of the test."""
    assert ADDRESSES.search(example), "the example names no server"
    exec(compile(ADDRESSES.sub(server.address, example), "example", "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize("example", blocks("python"))
def test_an_example_runs_by_itself_and_prints_the_answer(
    example: str, fake: FakeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    run(example, fake)
    assert "Hello" in capsys.readouterr().out


def test_the_example_of_trying_again_waits_as_the_server_says(
    fake: FakeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    def full_at_first(request: pb.GenerateRequest, context: grpc.ServicerContext) -> pb.GenerateTextResponse:
        if len(fake.requests) < 3:
            fail(errors.queue_full(0.01, "full"), context)
        return pb.GenerateTextResponse(choices=[pb.Choice(text="at last")])

    fake.text = full_at_first
    run(block_with("retry_after"), fake)
    assert len(fake.requests) == 3
    assert "at last" in capsys.readouterr().out


def test_the_example_of_trying_again_gives_up_where_the_request_is_wrong(
    fake: FakeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.text = lambda request, context: fail(errors.bad_fields([("stop.max_tokens", "too many")]), context)
    run(block_with("retry_after"), fake)
    assert len(fake.requests) == 1
    assert "stop.max_tokens: too many" in capsys.readouterr().out


def test_the_example_of_cancelling_ends_a_stream_that_would_not_end(
    fake: FakeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.generate = without_pause
    run(block_with("stream.cancel()"), fake)
    assert fake.ended.wait(10)
    assert "\nTrue xxx" in capsys.readouterr().out


def grpcurl_lines() -> Iterator[tuple[str, str]]:
    """(method, JSON of the request) of each line that calls one."""
    for page in PAGES:
        for line in re.findall(r"^grpcurl .*$", page.read_text(), re.MULTILINE):
            words = shlex.split(line)
            if words[-1] != "list":
                yield words[-1], words[words.index("-d") + 1]


@pytest.mark.parametrize(("method", "body"), list(grpcurl_lines()))
def test_a_grpcurl_line_names_a_method_and_its_fields(method: str, body: str) -> None:
    service, _, name = method.partition("/")
    found = descriptor_pool.Default().FindServiceByName(service).FindMethodByName(name)
    json_format.ParseDict(json.loads(body), message_factory.GetMessageClass(found.input_type)())


def commands() -> set[str]:
    """`pagemill ...` in code of the pages: the commands named."""
    return {
        name for page in PAGES for name in re.findall(r"(?:`|^|/)pagemill ([a-z]+)\b", page.read_text(), re.MULTILINE)
    }


@pytest.mark.parametrize("command", sorted(commands()))
def test_a_command_that_a_page_names_is_there(command: str) -> None:
    assert command in {info.name for info in app.registered_commands}
