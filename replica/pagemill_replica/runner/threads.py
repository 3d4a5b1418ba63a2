"""Processor threads of torch and numba, which share one OpenMP pool."""

from __future__ import annotations

import numba
import torch


def use_threads(threads: int) -> None:
    """Limits both libraries to `threads`; holds for the calling thread, which has to be the one that computes.

    numba cannot exceed the processors it found when it was imported (NUMBA_NUM_THREADS).
    """
    torch.set_num_threads(threads)
    processors: int = vars(numba.config)["NUMBA_NUM_THREADS"]
    numba.set_num_threads(min(threads, processors))
