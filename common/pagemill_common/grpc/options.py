"""Channel arguments of servers and clients, chosen to fit each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ChannelOptions = Sequence[tuple[str, int | str]]

KEEPALIVE_SECONDS = 20.0
"""Clients ping an idle connection this often: above the least interval that servers allow."""
KEEPALIVE_TIMEOUT_SECONDS = 10.0
"""A ping without an answer for this long ends the connection."""
MIN_PING_SECONDS = 10.0
"""Servers close a connection that pings more often."""
MAX_MESSAGE_BYTES = 16 * 1024 * 1024
"""Cap of one message between the tiers, in either direction: a prompt and all that was generated from it fit."""
MAX_REQUEST_BYTES = 6 * 1024 * 1024
"""Cap of one message from a caller to a router.

The longest prompt of the contract (4 MiB of text, or 2^20 token ids of 3 bytes) and 2 MiB for all else, the ids of a
continuation included. A message is parsed in one turn of the event loop, so this also bounds how long one caller can
hold up the others: about 0.1 s for each MiB of the smallest fields. gRPC itself refuses what is larger, with
RESOURCE_EXHAUSTED and without our details.
"""
MAX_STREAMS_PER_CONNECTION = 4096
"""Calls that one connection may have in the server, cancelled ones that the server has not yet looked at included.

gRPC's clients hold further calls back until one ends. A client that opens and resets streams without a pause (rapid
reset) has them refused from about here on, before they become calls, so that it costs the others no more than the time
to accept this many.
"""
MAX_PENDING_CALLS = 4 * MAX_STREAMS_PER_CONNECTION
"""Calls of all connections that have arrived and not been accepted.

gRPC ends those beyond it, whosever they are, with a bare CANCELLED that no handler or log sees: from 1,000 on at random
if nothing is said. So a burst must never get there: every call is accepted, in the order of arrival, and the queue
limits of the tiers refuse what is too much with RESOURCE_EXHAUSTED and RetryInfo. One connection can fill a quarter.
What bounds the memory is this number: a waiting call takes about 16 KiB, and as much again for the largest metadata.
"""

_INFINITE_MS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """How a server listens."""

    listen: str
    """host:port; port 0 takes a free one."""
    max_receive_bytes: int = MAX_MESSAGE_BYTES
    max_send_bytes: int = MAX_MESSAGE_BYTES
    max_connection_age: float | None = None
    """Seconds until a connection gets GOAWAY, for routers' public front; gRPC spreads it by 10 %. None: never."""
    max_connection_age_grace: float | None = None
    """Seconds its streams get to end; at least the longest stream. None: no limit."""
    reflection: bool = False
    channelz: bool = False


def server_options(options: ServerOptions) -> ChannelOptions:
    """Arguments for `grpc.aio.server`."""
    found: list[tuple[str, int | str]] = [
        ("grpc.max_receive_message_length", options.max_receive_bytes),
        ("grpc.max_send_message_length", options.max_send_bytes),
        ("grpc.http2.min_ping_interval_without_data_ms", _ms(MIN_PING_SECONDS)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.keepalive_time_ms", _ms(KEEPALIVE_SECONDS)),
        ("grpc.keepalive_timeout_ms", _ms(KEEPALIVE_TIMEOUT_SECONDS)),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.max_concurrent_streams", MAX_STREAMS_PER_CONNECTION),
        # Equal, so that there is no range in which gRPC drops at random.
        ("grpc.server.max_pending_requests", MAX_PENDING_CALLS),
        ("grpc.server.max_pending_requests_hard_limit", MAX_PENDING_CALLS),
        # Two processes that share a port by mistake must not split its calls between them.
        ("grpc.so_reuseport", 0),
    ]
    if options.max_connection_age is not None:
        grace = options.max_connection_age_grace
        found.append(("grpc.max_connection_age_ms", _ms(options.max_connection_age)))
        found.append(("grpc.max_connection_age_grace_ms", _INFINITE_MS if grace is None else _ms(grace)))
    return found


def channel_options(*, max_message_bytes: int = MAX_MESSAGE_BYTES, retries: bool = False) -> ChannelOptions:
    """Arguments for a channel from one tier to another. gRPC's own retries stay off unless `retries`."""
    return [
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.keepalive_time_ms", _ms(KEEPALIVE_SECONDS)),
        ("grpc.keepalive_timeout_ms", _ms(KEEPALIVE_TIMEOUT_SECONDS)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.enable_retries", int(retries)),
        # A channel has its own connection, so that closing one never touches another's calls.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 2000),
    ]


def _ms(seconds: float) -> int:
    return min(_INFINITE_MS, round(seconds * 1000))
