"""Numba's names as the kernels use them, untyped: what they decorate is compiled, not type-checked."""

from __future__ import annotations

from typing import Any

import numba
import numba.extending

njit: Any = numba.njit
prange: Any = numba.prange
carray: Any = numba.carray  # type: ignore[attr-defined]
int64: Any = numba.int64
float32: Any = numba.float32
intrinsic: Any = numba.extending.intrinsic
