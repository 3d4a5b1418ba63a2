"""Channels from one tier to another."""

from __future__ import annotations

import grpc

from pagemill_common.grpc.options import channel_options


def open_channel(address: str) -> grpc.aio.Channel:
    """A channel to one process, with keepalive that fits our servers and gRPC's own retries off."""
    return grpc.aio.insecure_channel(address, options=list(channel_options()))
