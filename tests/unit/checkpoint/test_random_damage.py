"""Whatever byte of a checkpoint is wrong, opening and reading it ends in a result or in a CheckpointError."""

from __future__ import annotations

import contextlib
import random
import struct
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

from pagemill_replica.checkpoint import CheckpointError, open_checkpoint
from pagemill_replica.checkpoint.tensors import read_rows
from support.checkpoints import RawTensor, array, llama, raw_gguf, string, write_folder

ROUNDS = 600
BUDGET_BYTES = 8 << 20


def damaged(content: bytes, header: int, draw: random.Random) -> bytes:
    """One to three of: bytes overwritten with extremes or noise, a run removed, a run repeated; all in the header."""
    changed = bytearray(content)
    for _ in range(draw.randint(1, 3)):
        at = draw.randrange(min(header, len(changed)))
        length = draw.choice((1, 1, 1, 2, 4, 8))
        match draw.randrange(5):
            case 0:
                changed[at : at + length] = draw.choice((b"\x00", b"\xff", b"\x80", b"\x7f", b"9", b"-", b'"')) * length
            case 1:
                changed[at] ^= 1 << draw.randrange(8)
            case 2:
                changed[at : at + length] = draw.randbytes(length)
            case 3:
                del changed[at : at + length]
            case 4:
                changed[at:at] = changed[at : at + length]
    return bytes(changed)


@contextlib.contextmanager
def bounded_memory() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < BUDGET_BYTES
    finally:
        tracemalloc.stop()


def attempt(path: Path) -> bool:
    """Whether the checkpoint opened; its rows and identity are read then."""
    try:
        checkpoint = open_checkpoint(path)
    except CheckpointError:
        return False
    for entry in checkpoint.entries.values():
        assert read_rows(entry).nbytes == entry.nbytes
    checkpoint.identity()
    return True


def test_gguf(tmp_path: Path) -> None:
    raw = raw_gguf()
    raw.metadata["tokenizer.ggml.tokens"] = array(8, 3, b"".join(string(text)[1] for text in ("a", "bc", "é")))
    raw.metadata["llama.rope.scaling.type"] = string("none")
    raw.tensors = {"rope_freqs.weight": RawTensor((4,), struct.pack("<4f", 1, 1, 2, 8)), **raw.tensors}
    content, draw, file = raw.encode(), random.Random(1), tmp_path / "model.gguf"
    header = len(content) - sum(len(tensor.data) for tensor in raw.tensors.values())
    opened = 0
    with bounded_memory():
        for _ in range(ROUNDS):
            file.write_bytes(damaged(content, header, draw))
            opened += attempt(file)
    assert 0 < opened < ROUNDS


def test_safetensors(tmp_path: Path) -> None:
    file = write_folder(tmp_path) / "model.safetensors"
    content, draw = file.read_bytes(), random.Random(1)
    header = 8 + int.from_bytes(content[:8], "little")
    opened = 0
    with bounded_memory():
        for _ in range(ROUNDS):
            file.write_bytes(damaged(content, header, draw))
            opened += attempt(tmp_path)
    assert 0 < opened < ROUNDS


def test_config(tmp_path: Path) -> None:
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    file = write_folder(tmp_path, llama(rope_scaling=scaling)) / "config.json"
    content, draw = file.read_bytes(), random.Random(1)
    opened = 0
    with bounded_memory():
        for _ in range(ROUNDS):
            file.write_bytes(damaged(content, len(content), draw))
            opened += attempt(tmp_path)
    assert 0 < opened < ROUNDS
