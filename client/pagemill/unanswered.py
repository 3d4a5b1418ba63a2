"""Errors that no server of this service sent: gRPC made them up from connections, names and health checks. Pure.

gRPC's text names every address it has tried and the layers that failed; what people need of it is the last cause.
"""

from __future__ import annotations

import re

import grpc

from pagemill.errors import NotReady, PagemillError
from pagemill.reasons import Reason

_UNHEALTHY = "backend unhealthy"
_CONNECTING = re.compile(
    r"(?:connections to all backends failing|failed to connect to all addresses); last error: "
    r"(?:[A-Z_]+: )?(?:(?:ipv4|ipv6|unix|unix-abstract|vsock):\S+: )?"
    r"(?:Failed to connect to remote host: |connect failed: addr: \S+ error: )?",
)
_RESOLVING = re.compile(
    r"errors resolving \S+: \[.*address lookup failed for (?:dns:(?:///)?)?(\S+?)(?::\w+)?: ([^\]]*)\]", re.DOTALL
)


def cause(text: str) -> str:
    """The last cause in gRPC's text about a failed connection; any other text on one line, as it is."""
    text = _RESOLVING.sub(r"the name \1 cannot be looked up: \2", text)
    return " ".join(_CONNECTING.sub("", text).split())


def explained(error: PagemillError, target: str, *, only_routers: bool = False) -> PagemillError:
    """The error, with the target named and what it means, where no server of ours sent it.

    `only_routers`: the call is one that a single replica does not offer.
    """
    if error.details:
        return error
    if error.code is grpc.StatusCode.UNAVAILABLE:
        if _UNHEALTHY in error.message:
            text = f"the server at {target} is up, but not ready: it has no ready replica, is starting, or drains"
            return NotReady(text, code=error.code, reason=Reason.NOT_READY)
        return _said(error, f"cannot reach {target}: {cause(error.message)}")
    if error.code is grpc.StatusCode.UNIMPLEMENTED and only_routers:
        return _said(error, f"{target} does not offer this call: a replica was asked, and only routers answer it")
    return error


def _said(error: PagemillError, message: str) -> PagemillError:
    error.message = message
    error.args = (message,)
    return error
