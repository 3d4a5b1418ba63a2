"""What may be written as a target: host:port, several of them, or a gRPC target with its scheme. Pure.

gRPC takes anything and fails at the first call, in words about resolvers; a wrong target is better told at once.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence

_SCHEMES = ("dns", "unix", "unix-abstract", "vsock", "xds")
"""Schemes whose rest is gRPC's to read."""
_NUMERIC = {"ipv4": 4, "ipv6": 6}
_HOST = re.compile(r"[^\s/\[\],:@?#]+")
_PORT = 8450


def grpc_target(written: str) -> str:
    """The gRPC target for what was written.

    Raises:
        ValueError: for what no server can be reached by; it says what to write.

    """
    scheme, colon, rest = written.partition(":")
    if colon and scheme in _SCHEMES:
        return written
    if colon and scheme in _NUMERIC:
        _one_family(written, _parts(rest), _NUMERIC[scheme])
        return written
    if "://" in written:
        raise _wrong(written, f"leave out {scheme}://", written.partition("://")[2].partition("/")[0])
    parts = _parts(written)
    for part in parts:
        _check(written, part)
    if len(parts) == 1:
        return parts[0]
    version = _one_family(written, parts)
    return f"ipv{version}:" + ",".join(parts)


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _one_family(written: str, parts: Sequence[str], expected: int | None = None) -> int:
    """The IP version of all addresses of a list."""
    if not parts:
        raise _wrong(written, "holds no address")
    versions = {_ip_version(part.rpartition(":")[0].strip("[]")) for part in parts}
    version = versions.pop()
    if versions or version is None or version != (expected or version):
        what = f"IPv{expected} addresses" if expected else "numeric addresses of one family"
        raise ValueError(f"target {written!r}: a list needs {what}, such as 10.0.0.1:{_PORT},10.0.0.2:{_PORT}")
    for part in parts:
        _check(written, part)
    return version


def _check(written: str, part: str) -> None:
    """Raises ValueError where `part` is not host:port."""
    host, colon, port = part.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]") and _ip_version(host[1:-1]) == 6
    if not bracketed and _ip_version(host) == 6:
        raise _wrong(written, "an IPv6 address stands in brackets", f"[{host}]:{port}")
    if not colon or _ip_version(part.strip("[]")) == 6:
        raise _wrong(written, f"{part} has no port", f"[{part.strip('[]')}]" if colon else part)
    if not bracketed and not _HOST.fullmatch(host):
        raise _wrong(written, f"{host!r} is no host" if host else "there is no host")
    if not (port.isascii() and port.isdigit() and 1 <= int(port) <= 65535):
        raise _wrong(written, f"{port!r} is no port from 1 to 65535", host)


def _wrong(written: str, what: str, like: str = "") -> ValueError:
    example = (like or "127.0.0.1").rstrip("/")
    if not re.search(r"[^:\[\]]:\d+$|\]:\d+$", example):
        example = f"{example}:{_PORT}"
    return ValueError(f"target {written!r}: {what}; write host:port, such as {example}")


def _ip_version(host: str) -> int | None:
    try:
        return ipaddress.ip_address(host).version
    except ValueError:
        return None
