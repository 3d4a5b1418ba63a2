"""Where a tensor lies in a file, and its bytes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pagemill_replica.checkpoint.errors import CheckpointError

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Encoding:
    """How a run of numbers is stored: `block` numbers in `block_bytes` bytes."""

    name: str
    block: int
    block_bytes: int


ENCODINGS = {
    e.name: e
    for e in (
        Encoding("F32", 1, 4),
        Encoding("F16", 1, 2),
        Encoding("BF16", 1, 2),
        Encoding("Q8_0", 32, 34),
        Encoding("Q4_0", 32, 18),
        Encoding("Q4_1", 32, 20),
    )
}


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """A tensor of a checkpoint by place, not by content."""

    name: str
    """Canonical name."""
    encoding: Encoding
    shape: tuple[int, ...]
    """Row-major: the last dimension is contiguous."""
    file: Path
    offset: int
    """Of its first byte in the file."""
    interleaved_heads: int = 0
    """Rows of this many heads are ordered for interleaved rotation (pairs side by side); 0: for half-split rotation."""

    @property
    def rows(self) -> int:
        """Product of all dimensions but the last; 1 for vectors."""
        return math.prod(self.shape[:-1])

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.shape[-1] // self.encoding.block * self.encoding.block_bytes

    @property
    def nbytes(self) -> int:
        """Bytes of the whole tensor."""
        return self.rows * self.row_bytes


def read_rows(entry: TensorEntry) -> Bytes:
    """The tensor's bytes as uint8 [rows, row_bytes]: a read-only map of the file, or a copy with its rows in order.

    Vectors of interleaved heads (biases) come as one row with their elements in order.
    Raises CheckpointError where the file has gone or shrunk.
    """
    try:
        mapped = np.memmap(entry.file, np.uint8, "r", entry.offset, (entry.rows, entry.row_bytes))
    except (OSError, ValueError) as error:
        raise CheckpointError(entry.file, f"tensor {entry.name} cannot be read: {error}") from error
    if not entry.interleaved_heads:
        return mapped
    if len(entry.shape) == 1:
        return mapped.reshape(entry.shape[0], -1)[half_split_order(entry.shape[0], entry.interleaved_heads)].reshape(
            1, -1
        )
    return mapped[half_split_order(entry.rows, entry.interleaved_heads)]


def half_split_order(rows: int, heads: int) -> npt.NDArray[np.int64]:
    """For each row of half-split order, where it lies in interleaved order, i64 [rows].

    In a head of D rows, interleaved rotation pairs rows (2i, 2i + 1), half-split rotation rows (i, i + D/2).
    """
    order = np.arange(rows, dtype=np.int64).reshape(heads, rows // heads // 2, 2)
    return np.ascontiguousarray(order.swapaxes(1, 2)).reshape(-1)
