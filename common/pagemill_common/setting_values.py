"""Kinds of values of settings: how each is written, and what is said of a wrong one.

What a validator raises begins with the value or says `is not a`, so that the line which names the flag reads well.
"""

from __future__ import annotations

import math
import os
import re
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator
from redis import ConnectionPool

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?", re.IGNORECASE)
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?")
_DATABASE = re.compile(r"/?\d*")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse_size(value: Any) -> Any:
    """Bytes from `2GiB`, `500MB` or `1048576`; raises ValueError."""
    if not isinstance(value, str):
        return value
    match = _SIZE.fullmatch(value.strip())
    if match is None:
        raise ValueError(f"{value!r} is not a size; write for example 2GiB, 500MB or a number of bytes")
    number, scale, binary = match.groups()
    base = 1024 if binary else 1000
    return int(float(number) * base ** " KMGT".index(scale.upper() or " "))


def parse_duration(value: Any) -> Any:
    """Seconds from `30s`, `250ms`, `10m` or `1.5`; raises ValueError."""
    if not isinstance(value, str):
        return value
    match = _DURATION.fullmatch(value.strip())
    if match is None:
        raise ValueError(f"{value!r} is not a duration; write for example 30s, 250ms, 10m or a number of seconds")
    number, unit = match.groups()
    return float(number) * _SECONDS[unit or "s"]


def show_size(size: int) -> str:
    """Bytes as `parse_size` reads them: `1MiB`, or a bare number where no binary unit divides it."""
    power = next((power for power in (4, 3, 2, 1) if size and size % 1024**power == 0), 0)
    return f"{size // 1024**power}{' KMGT'[power]}iB" if power else str(size)


def show_duration(seconds: float) -> str:
    """Seconds as `parse_duration` reads them, in the largest unit of which they are a whole number: `5m`, `250ms`."""
    for unit in ("h", "m", "s", "ms"):
        count = round(seconds / _SECONDS[unit])
        if (count or unit == "s") and math.isclose(count * _SECONDS[unit], seconds):
            return f"{count}{unit}"
    return f"{seconds:.15f}".rstrip("0").rstrip(".") + "s"


def parse_list(value: Any) -> Any:
    """A tuple from `a,b,c`; spaces around items are dropped, empty items too."""
    if not isinstance(value, str):
        return value
    return tuple(item for item in (part.strip() for part in value.split(",")) if item)


def check_address(value: str) -> str:
    """host:port with a port in [0, 65535]; raises ValueError."""
    host, colon, port = value.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{value!r} is not an address; write host:port, for example 127.0.0.1:8450")
    return value


def check_redis_url(value: str) -> str:
    """redis://, rediss:// or unix:// with what the client understands; raises ValueError, which shows no password."""
    try:
        if not value.startswith("unix:") and not _DATABASE.fullmatch(urlsplit(value).path):
            raise ValueError("the client would take database 0")
        # Builds a connection without opening it: only that looks at the options too.
        ConnectionPool.from_url(value).make_connection()
    except Exception:
        text = "is not a Redis URL; write redis://host:6379/0, rediss://... or unix:///path, with options that exist"
        raise ValueError(text) from None
    return value


def check_endpoint(value: str) -> str:
    """http://host, https://host or host:port; raises ValueError."""
    try:
        parts = urlsplit(value)
        right = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        right = False
    if not right and "://" not in value:
        right = bool(check_address(value))
    if not right:
        raise ValueError(f"{value!r} is not an endpoint; write for example http://localhost:4317")
    return value


def check_exists(value: Path) -> Path:
    """A file or folder that is there; raises ValueError."""
    if not os.path.exists(value):
        raise ValueError(f"{str(value)!r} is not a file or folder that exists")
    return value


def check_writable_place(value: Path) -> Path:
    """A file, there or not, in a folder that is there; raises ValueError."""
    if os.path.isdir(value) or not os.path.isdir(value.absolute().parent):
        raise ValueError(f"{str(value)!r} is not a file in a folder that exists")
    return value


Size = Annotated[int, BeforeValidator(parse_size)]
"""Bytes."""
Duration = Annotated[float, BeforeValidator(parse_duration)]
"""Seconds."""
CommaList = Annotated[tuple[str, ...], BeforeValidator(parse_list)]
"""Strings, separated by commas."""
Address = Annotated[str, AfterValidator(check_address)]
"""host:port."""
AddressList = Annotated[tuple[Address, ...], BeforeValidator(parse_list)]
"""host:port, separated by commas."""
RedisUrl = Annotated[str, AfterValidator(check_redis_url)]
"""Where Redis is."""
Endpoint = Annotated[str, AfterValidator(check_endpoint)]
"""A receiver over gRPC."""
ExistingPath = Annotated[Path, AfterValidator(check_exists)]
"""A file or folder to read."""
OutputFile = Annotated[Path, AfterValidator(check_writable_place)]
"""A file to write."""
