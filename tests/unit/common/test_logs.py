"""Log lines."""

from __future__ import annotations

import ast
import importlib.util
import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext

from pagemill_common import logs


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("pagemill")
    handlers, levels = root.handlers[:], (root.level, ours.level)
    yield
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    ours.setLevel(levels[1])


def lines(log_format: str, level: str = "info") -> tuple[logs.Log, io.StringIO]:
    stream = io.StringIO()
    logs.configure(log_format, level, service="svc", instance="one", stream=stream)
    return logs.get("pagemill.test"), stream


def test_json_line_carries_fields_service_and_trace() -> None:
    log, stream = lines("json")
    span = NonRecordingSpan(SpanContext(0xABC, 0xDEF, is_remote=False))
    with trace.use_span(span):
        log.info("done", tokens=3, text='a "b"\nc')
    line = json.loads(stream.getvalue())
    assert stream.getvalue().count("\n") == 1
    assert line["message"] == "done"
    assert (line["level"], line["service"], line["instance"]) == ("info", "svc", "one")
    assert (line["tokens"], line["text"]) == (3, 'a "b"\nc')
    assert line["trace_id"] == f"{0xABC:032x}"


def test_given_trace_id_wins_and_none_is_made_up() -> None:
    log, stream = lines("json")
    log.info("a", trace_id="t")
    log.info("b")
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert first["trace_id"] == "t"
    assert "trace_id" not in second


def test_exception_is_in_the_line() -> None:
    log, stream = lines("json")
    try:
        raise ValueError("boom")
    except ValueError as failure:
        log.error("failed", exc_info=failure)
    assert "ValueError: boom" in json.loads(stream.getvalue())["exception"]


def test_text_line_is_readable_and_leaves_out_empty_fields() -> None:
    log, stream = lines("text")
    log.warning("queue full", queued=7, share=0.123456, name="two words", router="", ttft=None)
    text = stream.getvalue()
    assert 'WARNING pagemill.test: queue full  queued=7  share=0.1235  name="two words"\n' in text


def test_auto_is_json_where_nobody_looks() -> None:
    log, stream = lines("auto")
    log.info("x")
    json.loads(stream.getvalue())


def test_level_holds_back_lesser_lines() -> None:
    log, stream = lines("json", "warning")
    log.info("x")
    log.debug("x")
    assert stream.getvalue() == ""


PACKAGES = ("pagemill", "pagemill_common", "pagemill_router", "pagemill_replica", "pagemill_kernels")


def test_a_logger_that_the_level_would_not_reach_is_refused() -> None:
    for name in ("pagemill_common.capacity", "", "root"):
        with pytest.raises(ValueError, match="below 'pagemill'"):
            logs.get(name)


@pytest.mark.parametrize("package", PACKAGES)
def test_every_logger_of_ours_is_below_the_one_that_has_the_level(package: str) -> None:
    """One named after its module, such as pagemill_common.x, would keep the root's level and say nothing of INFO."""
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    files = sorted(Path(spec.origin).parent.rglob("*.py"))
    assert files
    strays = [f"{file}:{line}" for file in files if file != Path(logs.__file__) for line in stray_loggers(file)]
    assert strays == []


def stray_loggers(file: Path) -> list[int]:
    """Lines of a file that make a logger whose name is not a literal below pagemill."""
    calls = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)]
    found = []
    for call in calls:
        if ast.unparse(call.func) in ("logging.getLogger", "getLogger", "logs.get"):
            name = call.args[0].value if call.args and isinstance(call.args[0], ast.Constant) else ""
            if not str(name).startswith("pagemill."):
                found.append(call.lineno)
    return found


HOSTILE = "\x1b[2J\x9b31m\x07\x7f\u202eevil\r\ud800 \U000e0041"
"""Clears a terminal, colours it, rings, erases, turns the line round; a surrogate that no stream takes."""


def test_text_shows_what_is_not_printable_and_a_terminal_obeys_nothing() -> None:
    log, stream = lines("text")
    try:
        raise ValueError(f"boom\n{HOSTILE}")
    except ValueError as failure:
        log.error(f"failed\n12:00:00.000 INFO forged {HOSTILE}", exc_info=failure, id=HOSTILE, bare="\x1b[2J", name="é")
    text = stream.getvalue()
    assert all(line.isprintable() for line in text.split("\n"))
    assert "forged" in text.splitlines()[0], "a message is one line"
    assert r"bare=\x1b[2J  name=é" in text
    assert "\nValueError: boom\n" in text


def test_json_escapes_what_is_not_printable_and_says_the_same() -> None:
    log, stream = lines("json")
    log.info("plain", name="é")
    log.info(HOSTILE, id=HOSTILE)
    plain, hostile = stream.getvalue().splitlines()
    assert '"name": "é"' in plain
    assert hostile.replace("\x7f", "").isprintable(), "all but one that terminals pass over"
    assert json.loads(hostile)["id"] == HOSTILE
