"""Addresses that cannot be listened on are told with flag and reason."""

from __future__ import annotations

import socket

import pytest

from pagemill_common.listen import ListenError, check_free


@pytest.fixture
def taken() -> int:
    """A port of 127.0.0.1 that somebody listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        one.listen()
        yield one.getsockname()[1]  # type: ignore[misc]


@pytest.mark.parametrize("address", ["127.0.0.1:0", "localhost:0", "0.0.0.0:0", "*:0"])
def test_what_is_free_passes(address: str) -> None:
    check_free("--listen", address)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0", "*"])
def test_a_port_that_is_taken_is_refused_by_every_name_of_the_host(host: str, taken: int) -> None:
    with pytest.raises(ListenError, match=rf"^--listen {host.replace('*', '.')}:{taken}: Address already in use$"):
        check_free("--listen", f"{host}:{taken}")


def test_a_host_of_somebody_else_is_refused() -> None:
    with pytest.raises(ListenError, match=r"^--listen 192\.0\.2\.1:0: Cannot assign requested address$"):
        check_free("--listen", "192.0.2.1:0")


def test_a_name_that_stands_for_nothing_is_refused() -> None:
    with pytest.raises(ListenError, match=r"^--listen no.host.invalid:1: .+$"):
        check_free("--listen", "no.host.invalid:1")


def test_a_port_whose_server_has_ended_is_free_at_once(taken: int) -> None:
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as caller:
            connection, _ = server.accept()
            # The side that closes first is the one whose port lingers.
            connection.close()
            caller.recv(1)
    check_free("--listen", f"127.0.0.1:{port}")
