"""Numba's names as the kernels use them, untyped: what they decorate is compiled, not type-checked.

Numba's cache on disk knows when the file of a function changes, not when a function that it calls does, nor a constant
of another module that was compiled in. `kernel` here stamps each cache entry with a digest of all sources of the
package, so that an upgrade or an edit never meets stale code.
"""

from __future__ import annotations

import functools
import hashlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numba.extending

prange: Any = numba.prange
carray: Any = numba.carray  # type: ignore[attr-defined]
int64: Any = numba.int64
float32: Any = numba.float32
uint64: Any = numba.uint64
intrinsic: Any = numba.extending.intrinsic


_log = logging.getLogger("pagemill.kernels")


def digest_of(package: Path) -> str:
    """A digest of every source below a folder, and of numba's version."""
    digest = hashlib.sha256(numba.__version__.encode())
    for source in sorted(package.rglob("*.py")):
        digest.update(source.read_bytes())
    return digest.hexdigest()


SOURCES_DIGEST = digest_of(Path(__file__).parents[1])

_numba: Any = numba
_LOOPS_ONLY = {
    "prange": True,
    "numpy": False,
    "comprehension": False,
    "reduction": False,
    "inplace_binop": False,
    "setitem": False,
    "stencil": False,
    "fusion": False,
}
"""Explicit prange loops alone become parallel: to turn array expressions into such loops takes long to compile."""

inner: Any = _numba.njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
"""A function that only other kernels call; it is cached as a part of them."""


@functools.cache
def _warn_of_no_cache() -> None:
    """Once, not for every kernel."""
    _log.warning("no folder for compiled kernels: every start compiles them; set NUMBA_CACHE_DIR to a writable folder")


def kernel(function: Callable[..., Any]) -> Any:
    """A kernel that Python calls: its prange loops run in parallel, and its machine code is cached on disk.

    Where no folder can be written (a read-only image and no home), it is compiled anew by every process.
    """
    dispatcher: Any = _numba.njit(error_model="numpy", parallel=_LOOPS_ONLY)(function)
    try:
        dispatcher.enable_caching()
    except RuntimeError:
        _warn_of_no_cache()
    else:
        dispatcher._cache._cache_file._source_stamp = SOURCES_DIGEST
    return dispatcher
