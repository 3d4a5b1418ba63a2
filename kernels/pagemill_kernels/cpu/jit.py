"""Numba's names as the kernels use them, untyped: what they decorate is compiled, not type-checked.

Numba's cache on disk knows when the file of a function changes, not when a function that it calls does. `njit` here
stamps each cache entry with a digest of all kernel sources, so that an upgrade or an edit never meets stale code.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numba.extending

prange: Any = numba.prange
carray: Any = numba.carray  # type: ignore[attr-defined]
int64: Any = numba.int64
float32: Any = numba.float32
float64: Any = numba.float64
uint32: Any = numba.uint32
uint64: Any = numba.uint64
intrinsic: Any = numba.extending.intrinsic


def _digest() -> str:
    digest = hashlib.sha256(numba.__version__.encode())
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    return digest.hexdigest()


SOURCES_DIGEST = _digest()


def njit(*, cache: bool = True, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """`numba.njit` whose cache entries are valid for one state of all kernel sources only."""

    def decorate(function: Callable[..., Any]) -> Any:
        dispatcher: Any = numba.njit(cache=cache, **options)(function)
        if cache:
            dispatcher._cache._cache_file._source_stamp = SOURCES_DIGEST
        return dispatcher

    return decorate
