"""Processor threads of torch and numba, which share one OpenMP pool."""

from __future__ import annotations

import numba
import torch

from pagemill_replica.runner.errors import SettingError

MOST_PER_PROCESSOR = 4
"""More only wait for each other, and far too many end the process inside of OpenMP."""


def resolve_threads(requested: int | None, processors: int) -> int:
    """Threads to use: as many as processors unless said otherwise. Raises SettingError."""
    most = MOST_PER_PROCESSOR * processors
    if requested is not None and not 1 <= requested <= most:
        raise SettingError("--threads", f"{requested}; it must be 1 to {most} where {processors} processors are usable")
    return requested or processors


def use_threads(threads: int) -> None:
    """Limits both libraries to `threads`; holds for the calling thread, which has to be the one that computes.

    numba cannot exceed the processors it found when it was imported (NUMBA_NUM_THREADS).
    """
    torch.set_num_threads(threads)
    processors: int = vars(numba.config)["NUMBA_NUM_THREADS"]
    numba.set_num_threads(min(threads, processors))
