"""gRPC's own texts about what it could not reach, as gRPC 1.85 writes them."""

from __future__ import annotations

import grpc
import pytest

import pagemill
from pagemill.errors import NotSupported, Unavailable
from pagemill.unanswered import cause, explained

CONNECTING = "connections to all backends failing; last error: "


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            CONNECTING + "UNKNOWN: ipv4:127.0.0.1:1: Failed to connect to remote host: Connection refused",
            "Connection refused",
        ),
        (
            CONNECTING + "UNKNOWN: ipv6:%5B::1%5D:1: Failed to connect to remote host: Connection refused",
            "Connection refused",
        ),
        (
            CONNECTING + "FAILED_PRECONDITION: unix:/x: connect failed: addr: unix:/x error: No such file or directory",
            "No such file or directory",
        ),
        (
            "unavailable: failed to connect to all addresses; last error: UNKNOWN: ipv4:10.0.0.1:1: No route to host",
            "unavailable: No route to host",
        ),
        (
            "errors resolving nohost:1: [field:hostname lookup error:address lookup failed for nohost:1: "
            "Domain name not found]",
            "the name nohost cannot be looked up: Domain name not found",
        ),
        ("silent for 3 s", "silent for 3 s"),
        ("two\nlines", "two lines"),
    ],
)
def test_only_the_last_cause_is_kept(text: str, said: str) -> None:
    assert cause(text) == said


def test_an_unhealthy_server_is_up_and_not_ready() -> None:
    error = explained(Unavailable(CONNECTING + "ipv4:127.0.0.1:1: backend unhealthy"), "router:1")
    assert type(error) is pagemill.NotReady
    assert error.code is grpc.StatusCode.UNAVAILABLE
    assert error.reason == pagemill.Reason.NOT_READY
    assert "the server at router:1 is up, but not ready" in str(error)


def test_a_missing_method_of_routers_means_a_replica_was_asked() -> None:
    error = explained(NotSupported("Method not found!"), "replica:1", only_routers=True)
    assert "replica:1 does not offer this call: a replica was asked" in str(error)
    assert str(explained(NotSupported("Method not found!"), "replica:1")) == "Method not found!"
