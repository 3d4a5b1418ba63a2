"""How tensors reach the numba kernels: tags of storage types, padding to whole vectors, threads."""

from __future__ import annotations

import contextlib
import importlib
import math
import mmap
from collections.abc import Sequence
from typing import Any

import numba
import numpy as np
import torch

from pagemill_kernels.cpu.vector import LANES

_numba_config: Any = numba.config

TAGS = {torch.float32: np.float32(0), torch.bfloat16: np.uint16(0), torch.float16: np.int16(0)}
"""Storage type -> the tag that `vector` compiles loads and stores for."""


def tag(what: str, tensor: torch.Tensor) -> Any:
    """The tag of a tensor's storage type; TypeError where the kernels have none."""
    found = TAGS.get(tensor.dtype)
    if found is None:
        known = ", ".join(str(dtype) for dtype in TAGS)
        raise TypeError(f"{what} of {tensor.dtype}; kernels take {known}")
    return found


def use_openmp() -> None:
    """Picks numba's OpenMP layer where there is one: it shares torch's thread pool and may be called concurrently."""
    with contextlib.suppress(ImportError):
        importlib.import_module("numba.np.ufunc.omppool")
        _numba_config.THREADING_LAYER = "omp"


def padded(size: int) -> int:
    """The least multiple of the vector width that holds `size`."""
    return -(-size // LANES) * LANES


def untouched_zeros(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Zeros whose pages take memory as they are first written: torch's own are written at once.

    A mapping of its own, since an allocator may hand out memory that it has to clear. It begins at a page, so that no
    vector straddles two cache lines, and asks for huge pages where the system has them.
    """
    nbytes = math.prod(shape) * dtype.itemsize
    memory = mmap.mmap(-1, max(1, nbytes))
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # A kernel built without them.
            memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.from_numpy(np.frombuffer(memory, np.uint8, nbytes)).view(dtype).view(tuple(shape))


def threads() -> int:
    """Threads to share work over: torch's number, as far as numba may start as many."""
    return min(torch.get_num_threads(), int(_numba_config.NUMBA_NUM_THREADS))
