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
"""Cap of one message in either direction: a prompt of a million token ids fits."""

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
