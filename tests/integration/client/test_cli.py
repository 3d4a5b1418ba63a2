"""The commands that ask a service, against a real server."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from typer.testing import CliRunner, Result

from pagemill.cli.app import app
from pagemill.cli.failures import ExitCode
from pagemill.v1 import generation_pb2 as pb
from pagemill_common import errors
from support.fake_service import FakeServer, delta, endless, fail, finished, started, without_pause
from support.terminal import Terminal

COMMAND = [sys.executable, "-c", "from pagemill.cli import main; main()"]


def run(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, list(arguments), input=stdin)


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_generate_streams_text_to_stdout_and_nothing_else(fake: FakeServer) -> None:
    result = run("generate", "hi", "-t", fake.address, "--max-tokens", "3", "--stop", "a", "--stop", "b")
    assert result.exit_code == 0
    assert result.stdout == "Hello, world\n"
    assert result.stderr == ""
    assert list(fake.requests[0].stop.strings) == ["a", "b"]


def test_generate_says_how_fast_it_was_on_stderr(fake: FakeServer) -> None:
    result = run("generate", "hi", "-t", fake.address, "--stats")
    assert result.stdout == "Hello, world\n"
    for fact in ("first token after", "5 prompt tokens (2 cached)", "3 generated", "stop string", "replica-0"):
        assert fact in result.stderr


def test_generate_reads_stdin_and_asks_in_chat_form(fake: FakeServer) -> None:
    run("generate", "-", "-t", fake.address, "--system", "be brief", stdin="from a pipe")
    assert [(m.role, m.content) for m in fake.requests[0].chat.messages] == [
        ("system", "be brief"),
        ("user", "from a pipe"),
    ]


def test_generate_json_is_one_event_a_line(fake: FakeServer) -> None:
    result = run("generate", "hi", "-t", fake.address, "--json")
    events = lines(result.stdout)
    assert [e["event"] for e in events] == ["started", "delta", "delta", "finished"]
    assert events[0]["seed"] == 2**64 - 1
    assert events[2] == {"event": "delta", "index": 0, "text": ", world", "token_ids": [2, 3], "position": 1}
    assert events[3]["reason"] == "stop_string"
    assert events[3]["completion_tokens"] == 3
    assert events[3]["prefill_seconds"] == 0.25


@pytest.mark.parametrize(
    ("error", "code", "said", "advice"),
    [
        (
            errors.bad_fields([("sampling.top_p", "too large"), ("n", "odd")]),
            3,
            "--top-p (sampling.top_p): too large",
            "n: odd",
        ),
        (errors.out_of_range("input", "9000 tokens"), 3, "input: 9000 tokens", "--truncate-prompt"),
        (errors.model_not_found("huge", ["tiny"]), 3, "huge", "pagemill models"),
        (errors.already_exists("mine"), 3, "mine", "--request-id"),
        (errors.unimplemented("n"), 3, "n is not supported", "leave that option out"),
        (errors.queue_full(2.5, "the queue is full"), 4, "the queue is full", "Try again in 2.5 s"),
        (errors.no_replica(1.5, "no ready replica"), 4, "no ready replica", "pagemill replicas"),
        (errors.replica_lost([7], "the replica is gone"), 4, "the replica is gone", "7 tokens had arrived"),
        (errors.deadline("prefill"), 5, "the timeout passed while the prompt was being read", "raise --timeout"),
        (errors.permission_denied("not you"), 6, "not you", "access"),
        (errors.internal("abc123"), 1, "internal error", "abc123"),
    ],
    ids=lambda value: value.reason if isinstance(value, errors.StatusError) else "",
)
def test_errors_are_a_line_advice_and_an_exit_status(
    fake: FakeServer, error: errors.StatusError, code: int, said: str, advice: str
) -> None:
    fake.generate = lambda request, context: fail(error, context)
    result = run("generate", "hi", "-t", fake.address, "--json")
    assert result.exit_code == code
    first, *rest = result.stderr.splitlines()
    assert first.startswith("error: ")
    assert said in first
    assert advice in "\n".join(rest)
    (line,) = lines(result.stdout)
    assert line["error"]["reason"] == error.reason
    assert line["error"]["code"] == error.code.name


def test_no_server_is_told_apart() -> None:
    result = run("models", "-t", "127.0.0.1:1")
    assert result.exit_code == ExitCode.BUSY
    assert "cannot reach 127.0.0.1:1: Connection refused" in result.stderr
    assert "pagemill serve" in result.stderr


def test_wrong_usage_is_status_2(fake: FakeServer) -> None:
    assert run("generate").exit_code == ExitCode.USAGE
    assert run("generate", "hi", "--top-k", "many").exit_code == ExitCode.USAGE
    assert run("models", "-t", "a:1,b:1").exit_code == ExitCode.USAGE


def test_text_before_an_error_ends_with_a_newline(fake: FakeServer) -> None:
    def behave(request: pb.GenerateRequest, context: grpc.ServicerContext) -> Iterator[pb.GenerateResponse]:
        yield started()
        yield delta("half an ans", 1)
        # The text must be read before the error comes, as it is where a replica dies.
        time.sleep(0.2)
        fail(errors.replica_lost([1], "gone"), context)

    fake.generate = behave
    result = run("generate", "hi", "-t", fake.address)
    assert result.stdout == "half an ans\n"
    assert result.exit_code == ExitCode.BUSY


def test_tokenize(fake: FakeServer) -> None:
    assert run("tokenize", "ab", "-t", fake.address).stdout == "97 98\n"
    assert run("tokenize", "ab", "-t", fake.address, "--count").stdout == "2\n"
    (found,) = lines(run("tokenize", "ab", "-t", fake.address, "--json").stdout)
    assert (found["token_ids"], found["pieces"], found["model"]) == ([97, 98], ["a", "b"], "tiny")
    (chat,) = lines(run("tokenize", "ab", "--chat", "-t", fake.address, "--json").stdout)
    assert chat["rendered"] == "<user>ab"


def test_models_and_replicas(fake: FakeServer) -> None:
    assert "tiny" in run("models", "-t", fake.address).stdout
    (model,) = lines(run("models", "-t", fake.address, "--json").stdout)
    assert (model["name"], model["max_context_tokens"], model["has_chat_template"]) == ("tiny", 2048, False)
    table = run("replicas", "-t", fake.address)
    assert "ready" in table.stdout
    assert "25%" in table.stdout
    assert "admission redis" in table.stderr
    replica, router = lines(run("replicas", "-t", fake.address, "--json").stdout)
    assert replica["standing"] == "REPLICA_STANDING_READY"
    assert replica["state"]["committed_blocks"] == 25
    assert router == {
        "router": "router-0",
        "router_pid": 42,
        "policy": "least_loaded",
        "admission_mode": "ADMISSION_MODE_REDIS",
        "queued": 0,
    }


def test_cordon_uncordon_explain(fake: FakeServer) -> None:
    assert run("cordon", "replica-0", "--reason", "disk", "-t", fake.address).stdout == (
        f"replica-0 is cordoned on this router only\nundo it with: pagemill uncordon replica-0 -t {fake.address}\n"
    )
    assert run("uncordon", "replica-0", "-t", fake.address).stdout == "replica-0 is ready\n"
    (explained,) = lines(run("explain", "hi", "--max-tokens", "4", "-t", fake.address, "--json").stdout)
    assert explained["candidates"][0]["replica"] == "replica-0"
    assert fake.requests[0].stop.max_tokens == 4
    assert "local" in run("explain", "hi", "-t", fake.address).stderr


def test_chat_keeps_the_conversation(fake: FakeServer) -> None:
    result = run(
        "chat", "-t", fake.address, "--system", "be kind", stdin="one\n\ntwo\n/reset\nthree\n/nonsense\n/exit\nfour\n"
    )
    assert result.exit_code == 0
    said = [[(m.role, m.content) for m in r.chat.messages] for r in fake.requests]
    assert said == [
        [("system", "be kind"), ("user", "one")],
        [("system", "be kind"), ("user", "one"), ("assistant", "Hello, world"), ("user", "two")],
        [("system", "be kind"), ("user", "three")],
    ]
    assert result.stdout == "Hello, world\n" * 3
    assert "/nonsense" in result.stderr


def test_chat_goes_on_after_an_error(fake: FakeServer) -> None:
    answers = iter([errors.queue_full(1.0, "full"), None])

    def behave(request: pb.GenerateRequest, context: grpc.ServicerContext) -> Iterator[pb.GenerateResponse]:
        error = next(answers)
        if error is not None:
            fail(error, context)
        yield started()
        yield delta("fine", 1)
        yield finished(1)

    fake.generate = behave
    result = run("chat", "-t", fake.address, stdin="one\ntwo\n")
    assert result.exit_code == 0
    assert result.stdout == "fine\n"
    assert "error: full" in result.stderr
    assert len(fake.requests[1].chat.messages) == 1, "a message without an answer is not kept"


def test_system_command_starts_over(fake: FakeServer) -> None:
    run("chat", "-t", fake.address, stdin="one\n/system talk like a pirate\ntwo\n")
    assert [(m.role, m.content) for m in fake.requests[1].chat.messages] == [
        ("system", "talk like a pirate"),
        ("user", "two"),
    ]


def test_chat_without_a_server_fails_at_once() -> None:
    assert run("chat", "-t", "127.0.0.1:1", stdin="").exit_code == ExitCode.BUSY


def test_ctrl_c_cancels_the_answer_and_not_the_session(fake: FakeServer) -> None:
    fake.generate = endless
    terminal = Terminal("chat", "-t", fake.address)
    terminal.expect("/help")
    terminal.type("hi\n")
    terminal.expect("on and on")
    terminal.type("\x03")
    terminal.expect("cancelled")
    assert fake.ended.wait(10)
    terminal.interrupt("/exit")
    terminal.type("/exit\n")
    terminal.leave()


def test_ctrl_c_at_any_moment_of_a_fast_answer_leaves_the_session_going(fake: FakeServer) -> None:
    fake.generate = without_pause
    terminal = Terminal("chat", "-t", fake.address)
    terminal.expect("/help")
    for _ in range(25):
        terminal.type("hi\n")
        terminal.expect("x" * 200)
        terminal.type("\x03")
        terminal.expect("cancelled")
    terminal.type("/exit\n")
    terminal.leave()


def test_ctrl_c_in_generate_cancels_and_exits_130(fake: FakeServer) -> None:
    fake.generate = endless
    process = subprocess.Popen(
        [*COMMAND, "generate", "hi", "-t", fake.address], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.read(9) == "on and on"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == ExitCode.INTERRUPTED
    assert "Traceback" not in err
    assert fake.ended.wait(10)


def test_output_on_a_terminal_cannot_drive_it(fake: FakeServer) -> None:
    fake.generate = lambda request, context: iter([started(), delta("a\x1b[2Jb\n", 1), finished(1)])
    terminal = Terminal("generate", "hi", "-t", fake.address)
    terminal.expect("a\\x1b[2Jb")
    terminal.leave()
    assert run("generate", "hi", "-t", fake.address).stdout == "a\x1b[2Jb\n", "a pipe gets the text as it is"


def test_a_closed_pipe_ends_quietly(fake: FakeServer) -> None:
    def many(request: pb.GenerateRequest, context: grpc.ServicerContext) -> Iterator[pb.GenerateResponse]:
        yield started()
        for i in range(20_000):
            yield delta("line of text\n", 1, position=i)
        yield finished(20_000)

    fake.generate = many
    command = " ".join(f"'{part}'" for part in [*COMMAND, "generate", "hi", "-t", fake.address])
    done = subprocess.run(["bash", "-c", f"{command} | head -1"], capture_output=True, text=True, timeout=60)
    assert done.stdout == "line of text\n"
    assert "Traceback" not in done.stderr
