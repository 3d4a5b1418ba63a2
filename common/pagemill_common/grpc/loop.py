"""One uvloop event loop for each process."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

import uvloop

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    """Runs `main` to its end on a new uvloop loop. Call it once a process, and never fork after gRPC has started."""
    return uvloop.run(main)
