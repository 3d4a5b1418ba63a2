"""How the client's channels are set up: target, service config, keepalive, limits. Pure."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

from pagemill.target import grpc_target

TARGET_VARIABLE = "PAGEMILL_TARGET"
DEFAULT_TARGET = "127.0.0.1:8450"

DEADLINE_MARGIN = 0.25
"""Seconds by which the gRPC deadline is later than the request's timeout, so that the server's own status arrives."""

MAX_REQUEST_BYTES = 16 * 2**20
MAX_RESPONSE_BYTES = 64 * 2**20

_KEEPALIVE_MS = 20_000
"""Servers refuse clients that ping more often than every 10 s."""
_MAX_ATTEMPTS = 3


def resolve_target(target: str | None, environment: Mapping[str, str] = os.environ) -> str:
    """The gRPC target: the argument, else PAGEMILL_TARGET, else 127.0.0.1:8450.

    Several `host:port` with commas between them become one target, over which calls go in turn, when every host is a
    numeric address; names go through DNS (`dns:///name:port` yields all its addresses).

    Raises:
        ValueError: for a target by which no server can be reached; it says what to write.

    """
    return grpc_target((target or environment.get(TARGET_VARIABLE) or DEFAULT_TARGET).strip())


def service_config(max_attempts: int = _MAX_ATTEMPTS, *, only_healthy: bool = True) -> str:
    """The service config as JSON: round robin over healthy servers, UNAVAILABLE retried, nothing else.

    A streaming call is retried only while the server has sent nothing, which is what gRPC itself guarantees. Without
    `only_healthy` servers that say they are not ready get calls too: they still tell why.
    """
    services = ("pagemill.v1.GenerationService", "pagemill.v1.AdminService")
    method: dict[str, object] = {"name": [{"service": service} for service in services]}
    if max_attempts > 1:
        method["retryPolicy"] = {
            "maxAttempts": max_attempts,
            "initialBackoff": "0.1s",
            "maxBackoff": "2s",
            "backoffMultiplier": 2,
            "retryableStatusCodes": ["UNAVAILABLE"],
        }
    config: dict[str, object] = {"loadBalancingConfig": [{"round_robin": {}}], "methodConfig": [method]}
    if only_healthy:
        config["healthCheckConfig"] = {"serviceName": ""}
    return json.dumps(config)


def channel_options(
    user_agent: str, max_attempts: int = _MAX_ATTEMPTS, *, only_healthy: bool = True
) -> list[tuple[str, str | int]]:
    """The channel's arguments."""
    return [
        ("grpc.service_config", service_config(max_attempts, only_healthy=only_healthy)),
        # A target's own TXT records must not override what callers of this library rely on.
        ("grpc.service_config_disable_resolution", 1),
        ("grpc.enable_retries", 1),
        # A call whose request does not fit here is committed at once and never retried.
        ("grpc.per_rpc_retry_buffer_size", MAX_REQUEST_BYTES),
        ("grpc.primary_user_agent", user_agent),
        ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.max_send_message_length", MAX_REQUEST_BYTES),
        ("grpc.max_receive_message_length", MAX_RESPONSE_BYTES),
        # Clients that come and go must see new routers and restarts soon.
        ("grpc.dns_min_time_between_resolutions_ms", 5_000),
        # A connection attempt gets at least 2 s; a failed one is repeated soon, for servers that are just starting.
        ("grpc.min_reconnect_backoff_ms", 2_000),
        ("grpc.initial_reconnect_backoff_ms", 200),
        ("grpc.max_reconnect_backoff_ms", 5_000),
    ]


def grpc_deadline(timeout: float | None) -> float | None:
    """Seconds for the gRPC call where the request has this timeout."""
    return None if timeout is None else timeout + DEADLINE_MARGIN
