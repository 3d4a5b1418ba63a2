"""The header of a GGUF file: metadata and tensor index.

Layout (little endian): magic, u32 version, u64 tensors, u64 pairs; pairs of key, type, value; per tensor its name,
dimensions (the contiguous one first), type and offset into the data, which starts at the next aligned byte.
Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pagemill_replica.checkpoint.errors import AGAIN, CheckpointError
from pagemill_replica.checkpoint.files import LFS_START, refuse_pointer

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_DIMENSIONS = 4
MAX_ARRAY_DEPTH = 4

STRING, ARRAY, BOOL = 8, 9, 7
SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<B", 10: "<Q", 11: "<q", 12: "<d"}

TYPE_NAMES = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    6: "Q5_0",
    7: "Q5_1",
    8: "Q8_0",
    9: "Q8_1",
    10: "Q2_K",
    11: "Q3_K",
    12: "Q4_K",
    13: "Q5_K",
    14: "Q6_K",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    20: "IQ4_NL",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    29: "IQ1_M",
    30: "BF16",
    34: "TQ1_0",
    35: "TQ2_0",
    39: "MXFP4",
}
"""GGML's numbers of tensor types, to name those that cannot be read."""


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A tensor as the file describes it."""

    name: str
    type_name: str
    shape: tuple[int, ...]
    """Row-major: the file's order reversed."""
    offset: int
    """Of its first byte in the file."""


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """All that precedes a GGUF file's data."""

    metadata: dict[str, object]
    tensors: list[GgufTensor]
    size: int
    """Bytes of the whole file."""


def is_gguf(file: Path) -> bool:
    """Whether a file starts like GGUF; False where it cannot be read."""
    try:
        with file.open("rb") as stream:
            return stream.read(4) == MAGIC
    except OSError:
        return False


def read_header(file: Path) -> GgufHeader:
    """Reads the header; CheckpointError where it is damaged, truncated or of another version."""
    try:
        with file.open("rb") as stream:
            start = stream.read(len(LFS_START))
            refuse_pointer(file, start)
            if not start.startswith(MAGIC):
                raise CheckpointError(file, f"is not a GGUF file: it starts with {start[:4]!r}, not {MAGIC!r}")
            with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _Reader(file, data).header()
    except OSError as error:
        raise CheckpointError(file, f"cannot be read: {error.strerror}") from error


class _Reader:
    """A cursor over the mapped file that never leaves it."""

    def __init__(self, file: Path, data: mmap.mmap) -> None:
        self._file = file
        self._data = data
        self._size = len(data)
        self._at = len(MAGIC)

    def header(self) -> GgufHeader:
        version = self._scalar("<I")
        if version not in VERSIONS:
            swapped = int.from_bytes(int(version).to_bytes(4, "little"), "big")
            what = "is big-endian GGUF" if swapped in VERSIONS else f"is GGUF version {version}"
            raise CheckpointError(self._file, f"{what}; supported are little-endian versions 2 and 3")
        tensors, pairs = self._count("tensors", 24), self._count("metadata", 12)
        metadata: dict[str, object] = {}
        for _ in range(pairs):
            key = self._string("a metadata key")
            if key in metadata:
                raise CheckpointError(self._file, f"is corrupt: metadata {key[:80]!r} occurs twice; {AGAIN}")
            metadata[key] = self._value(key, int(self._scalar("<I")), 0)
        alignment = self._alignment(metadata)
        found = [self._tensor(alignment) for _ in range(tensors)]
        return GgufHeader(metadata, self._placed(found, -(-self._at // alignment) * alignment), self._size)

    def _placed(self, tensors: list[GgufTensor], start: int) -> list[GgufTensor]:
        names: set[str] = set()
        for tensor in tensors:
            if tensor.name in names:
                raise CheckpointError(self._file, f"is corrupt: tensor {tensor.name[:80]!r} occurs twice; {AGAIN}")
            names.add(tensor.name)
        return [GgufTensor(t.name, t.type_name, t.shape, start + t.offset) for t in tensors]

    def _alignment(self, metadata: dict[str, object]) -> int:
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 8 or alignment & (alignment - 1):
            found = str(alignment)[:20]
            raise CheckpointError(
                self._file, f"is corrupt: general.alignment is {found}; it must be a power of two of at least 8"
            )
        return alignment

    def _tensor(self, alignment: int) -> GgufTensor:
        name = self._string("a tensor's name")
        dimensions = int(self._scalar("<I"))
        if not 1 <= dimensions <= MAX_DIMENSIONS:
            raise CheckpointError(self._file, f"is corrupt: tensor {name[:80]!r} has {dimensions} dimensions")
        shape = [int(self._scalar("<Q")) for _ in range(dimensions)]
        kind, offset = int(self._scalar("<I")), int(self._scalar("<Q"))
        if offset % alignment:
            raise CheckpointError(
                self._file, f"is corrupt: tensor {name[:80]!r} starts at {offset}, not at a multiple of {alignment}"
            )
        return GgufTensor(name, TYPE_NAMES.get(kind, f"number {kind}"), tuple(reversed(shape)), offset)

    def _value(self, key: str, kind: int, depth: int) -> object:
        if kind == STRING:
            return self._string(key)
        if kind == ARRAY and depth < MAX_ARRAY_DEPTH:
            return self._array(key, depth + 1)
        if kind not in SCALARS:
            raise CheckpointError(self._file, f"is corrupt: metadata {key[:80]!r} has unknown type {kind}")
        value = self._scalar(SCALARS[kind])
        return bool(value) if kind == BOOL else value

    def _array(self, key: str, depth: int) -> list[Any]:
        kind = int(self._scalar("<I"))
        width = struct.calcsize(SCALARS[kind]) if kind in SCALARS else 8
        count = self._count(key, width)
        if kind not in SCALARS:
            return [self._value(key, kind, depth) for _ in range(count)]
        numbers = np.frombuffer(self._data, SCALARS[kind], count, self._at).tolist()
        self._at += count * width
        return [bool(number) for number in numbers] if kind == BOOL else numbers

    def _count(self, what: str, least_bytes: int) -> int:
        """A number of things of at least `least_bytes` each, checked before anything is allocated for them."""
        count = int(self._scalar("<Q"))
        if count * least_bytes > self._size - self._at:
            raise self._short(f"{count} entries of {what[:80]}")
        return count

    def _string(self, what: str) -> str:
        length = int(self._scalar("<Q"))
        if length > self._size - self._at:
            raise self._short(what[:80])
        raw = self._data[self._at : self._at + length]
        self._at += length
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise CheckpointError(self._file, f"is corrupt: {what[:80]} is not UTF-8") from error

    def _scalar(self, form: str) -> int | float:
        width = struct.calcsize(form)
        if width > self._size - self._at:
            raise self._short("its header")
        value: int | float = struct.unpack_from(form, self._data, self._at)[0]
        self._at += width
        return value

    def _short(self, what: str) -> CheckpointError:
        return CheckpointError(
            self._file, f"is truncated or corrupt: {what} would pass its end at byte {self._size}; {AGAIN}"
        )
