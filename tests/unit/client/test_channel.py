"""The channel's arguments."""

from __future__ import annotations

import json

import pytest

from pagemill.channel import DEFAULT_TARGET, channel_options, grpc_deadline, resolve_target, service_config
from pagemill_common.grpc.options import MIN_PING_SECONDS


@pytest.mark.parametrize(
    ("given", "environment", "target"),
    [
        (None, {}, DEFAULT_TARGET),
        (None, {"PAGEMILL_TARGET": "router:1"}, "router:1"),
        ("mine:2", {"PAGEMILL_TARGET": "router:1"}, "mine:2"),
        ("dns:///routers.example:8450", {}, "dns:///routers.example:8450"),
        ("10.0.0.1:1,10.0.0.2:1", {}, "ipv4:10.0.0.1:1,10.0.0.2:1"),
        (" 10.0.0.1:1 , 10.0.0.2:1 ", {}, "ipv4:10.0.0.1:1,10.0.0.2:1"),
        ("[::1]:1,[::2]:1", {}, "ipv6:[::1]:1,[::2]:1"),
        ("ipv4:10.0.0.1:1,10.0.0.2:1", {}, "ipv4:10.0.0.1:1,10.0.0.2:1"),
        ("10.0.0.1:1,", {}, "10.0.0.1:1"),
        ("[::1]:8450", {}, "[::1]:8450"),
        ("unix:/run/pagemill.sock", {}, "unix:/run/pagemill.sock"),
        ("dns:routers:8450", {}, "dns:routers:8450"),
    ],
)
def test_targets(given: str | None, environment: dict[str, str], target: str) -> None:
    assert resolve_target(given, environment) == target


@pytest.mark.parametrize("given", ["a:1,b:1", "10.0.0.1:1,[::1]:1", "ipv4:1.2.3:1,10.0.0.1:1"])
def test_a_list_of_names_is_refused(given: str) -> None:
    with pytest.raises(ValueError, match="a list needs"):
        resolve_target(given, {})


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        ("127.0.0.1", "has no port; write host:port, such as 127.0.0.1:8450"),
        ("router", "such as router:8450"),
        ("router:", "such as router:8450"),
        ("router:99999", "'99999' is no port from 1 to 65535"),
        ("router:0", "no port from 1 to 65535"),
        (":8450", "there is no host"),
        (":::::", "'::::' is no host"),
        ("::1", r"such as \[::1\]:8450"),
        ("fe80::1:8450", r"in brackets; write host:port, such as \[fe80::1\]:8450"),
        ("http://router:80/x", "leave out http://; write host:port, such as router:80"),
        ("a b:1", "'a b' is no host"),
        (",", "holds no address"),
        ("ipv4:", "holds no address"),
        ("ipv4:10.0.0.1", "a list needs IPv4 addresses"),
        ("10.0.0.1:1,10.0.0.2:x", "'x' is no port"),
    ],
)
def test_a_target_that_cannot_be_called_says_what_to_write(given: str, advice: str) -> None:
    with pytest.raises(ValueError, match=advice):
        resolve_target(given, {})


def test_calls_that_need_no_ready_replica_go_to_any_server() -> None:
    assert "healthCheckConfig" in json.loads(service_config())
    assert "healthCheckConfig" not in json.loads(service_config(only_healthy=False))


def test_only_unavailable_is_retried_and_at_most_twice() -> None:
    (method,) = json.loads(service_config())["methodConfig"]
    assert method["retryPolicy"]["maxAttempts"] == 3
    assert method["retryPolicy"]["retryableStatusCodes"] == ["UNAVAILABLE"]
    assert "retryPolicy" not in json.loads(service_config(1))["methodConfig"][0]


def test_pings_are_no_more_frequent_than_servers_allow() -> None:
    options = dict(channel_options("x"))
    assert int(options["grpc.keepalive_time_ms"]) >= MIN_PING_SECONDS * 1000


def test_the_deadline_is_a_quarter_of_a_second_after_the_timeout() -> None:
    assert grpc_deadline(2.0) == 2.25
    assert grpc_deadline(None) is None
