"""Whether an address can be listened on, asked before anybody does.

gRPC would say so too, but with lines of its own C core on standard error and without the reason.
"""

from __future__ import annotations

import errno
import os
import socket


class ListenError(Exception):
    """The address cannot be listened on; the message names the flag, the address and why."""


def check_free(flag: str, address: str) -> None:
    """Binds host:port for a moment. Raises ListenError for a host that is not ours and for a port that is taken.

    A name may stand for several addresses: one that is taken is enough to refuse, since two servers would share the
    name's callers, while one that this machine does not have is not.
    """
    host, _, port = address.rpartition(":")
    failures: list[OSError] = []
    bound = False
    for family, name in _resolve(flag, address, host.strip("[]"), int(port)):
        try:
            _bind(family, name)
            bound = True
        except OSError as failure:
            failures.append(failure)
            if failure.errno == errno.EADDRINUSE:
                raise refusal(flag, address, failure) from failure
    if not bound:
        raise refusal(flag, address, failures[0])


def refusal(flag: str, address: str, failure: OSError | None) -> ListenError:
    """The error for an address on which listening has failed."""
    if failure is None:
        return ListenError(f"{flag} {address}: cannot be listened on")
    reason = os.strerror(failure.errno) if failure.errno and failure.errno > 0 else failure.strerror or str(failure)
    return ListenError(f"{flag} {address}: {reason}")


def _resolve(flag: str, address: str, host: str, port: int) -> list[tuple[int, tuple[object, ...]]]:
    try:
        found = socket.getaddrinfo(
            None if host == "*" else host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as failure:
        raise refusal(flag, address, failure) from failure
    return [(family, name) for family, _, _, _, name in found]


def _bind(family: int, name: tuple[object, ...]) -> None:
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # As gRPC does: connections of an earlier process that linger do not hold the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        probe.bind(name)
