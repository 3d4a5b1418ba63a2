"""The metrics port beside callers who mean no good."""

from __future__ import annotations

import io
import json
import logging
import socket
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from prometheus_client import CollectorRegistry, Gauge

from pagemill_common import logs
from pagemill_common.telemetry.metrics_port import MetricsPort

WITHIN = 60.0
"""Longer than anything takes; what never ends fails by it."""


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    root, ours = logging.getLogger(), logging.getLogger("pagemill")
    before = root.handlers[:], root.level, ours.level
    stream = io.StringIO()
    logs.configure("json", "info", stream=stream)
    yield stream
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    ours.setLevel(before[2])


def open_port(*, idle_seconds: float = WITHIN, at_once: int = 8) -> MetricsPort:
    registry = CollectorRegistry()
    Gauge("answer", "x", registry=registry).set(42)
    return MetricsPort(registry, "127.0.0.1", 0, idle_seconds=idle_seconds, at_once=at_once)


def connect(port: MetricsPort, sent: bytes = b"") -> socket.socket:
    host, _, number = port.address.rpartition(":")
    connection = socket.create_connection((host, int(number)), timeout=WITHIN)
    connection.sendall(sent)
    return connection


def scrape(port: MetricsPort) -> str:
    text: str = urllib.request.urlopen(f"http://{port.address}/metrics", timeout=WITHIN).read().decode()
    return text


def test_idle_connections_hold_few_threads_and_keep_no_scrape_from_its_answer() -> None:
    port = open_port(at_once=4)
    before = threading.active_count()
    with ExitStack() as stack:
        for number in range(40):
            stack.enter_context(connect(port, b"GET /metrics HTTP/1.1\r\n" if number % 2 else b""))
            assert "answer 42.0" in scrape(port)
            assert threading.active_count() < before + 20, "4, and a few that are about to end"
    port.close()


def test_the_oldest_connection_gives_way() -> None:
    port = open_port(at_once=1)
    with connect(port) as oldest:
        scrape(port)
        assert oldest.recv(1) == b"", "closed by the port"
    port.close()


@pytest.mark.parametrize("sent", [b"", b"GET /metrics HTTP/1.1\r\n"])
def test_a_connection_that_brings_nothing_is_closed(sent: bytes) -> None:
    port = open_port(idle_seconds=0.05)
    with connect(port, sent) as idle:
        assert idle.recv(1) == b""
    port.close()


def test_what_goes_wrong_is_a_line_of_our_log(log: io.StringIO, capfd: pytest.CaptureFixture[str]) -> None:
    registry = CollectorRegistry()
    Gauge("broken", "x", registry=registry).set_function(lambda: 1 // 0)
    port = MetricsPort(registry, "127.0.0.1", 0)
    with connect(port, b"GET /metrics HTTP/1.0\r\n\r\n") as caller:
        assert caller.recv(1) == b""
    with connect(port, b"\xff\xfe garbage\r\n\r\n") as caller:
        caller.recv(1)
    port.close()
    (line,) = [json.loads(line) for line in log.getvalue().splitlines()]
    assert (line["level"], line["message"]) == ("error", "metrics could not be read")
    assert "ZeroDivisionError" in line["exception"]
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("host", ["0.0.0.0", "", "localhost"])
def test_the_port_is_told_as_it_was_asked_for(host: str) -> None:
    port = MetricsPort(CollectorRegistry(), host, 0)
    assert port.address.startswith(f"{host}:")
    port.close()
