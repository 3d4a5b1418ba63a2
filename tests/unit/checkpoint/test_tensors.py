"""Rows of a tensor: mapped where they lie, put in order where a GGUF file interleaves the rotation's pairs."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from pagemill_replica.checkpoint import open_checkpoint
from pagemill_replica.checkpoint.tensors import ENCODINGS, TensorEntry, half_split_order, read_rows
from support.checkpoints import RawTensor, raw_gguf, write_folder

Q0, K0 = "model.layers.0.self_attn.q_proj.weight", "model.layers.0.self_attn.k_proj.weight"


def stored(file: Path, values: np.ndarray, interleaved_heads: int) -> TensorEntry:
    file.write_bytes(b"skip" + values.tobytes())
    return TensorEntry("t", ENCODINGS["F32"], values.shape, file, 4, interleaved_heads)


def test_the_order_of_a_head_is_even_rows_then_odd_rows() -> None:
    assert half_split_order(8, 1).tolist() == [0, 2, 4, 6, 1, 3, 5, 7]
    assert half_split_order(8, 2).tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_interleaved_rows_come_in_half_split_order(tmp_path: Path) -> None:
    values = np.arange(8 * 3, dtype=np.float32).reshape(8, 3)
    rows = read_rows(stored(tmp_path / "f", values, 2)).view(np.float32)
    np.testing.assert_array_equal(rows, values[[0, 2, 1, 3, 4, 6, 5, 7]])


def test_an_interleaved_vector_comes_as_one_row_of_elements_in_order(tmp_path: Path) -> None:
    values = np.arange(8, dtype=np.float32)
    rows = read_rows(stored(tmp_path / "f", values, 2))
    assert rows.shape == (1, 32)
    assert rows.view(np.float32)[0].tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_rotating_reordered_rows_is_rotating_the_interleaved_pairs(tmp_path: Path) -> None:
    """The formula, not the index: q.k under interleaved rotation equals q.k of reordered rows under half-split."""
    generator = np.random.default_rng(5)
    wq, wk, x, y = (generator.normal(size=shape).astype(np.float32) for shape in ((8, 6), (8, 6), (6,), (6,)))

    def score(q: np.ndarray, k: np.ndarray, pairs: list[tuple[int, int]]) -> float:
        total = 0.0
        for i, (a, b) in enumerate(pairs):
            turn = complex(np.exp(1j * 3 * 10000 ** (-2 * i / 8)))
            total += (complex(q[a], q[b]) * turn * complex(k[a], k[b]).conjugate()).real
        return total

    ordered_q = read_rows(stored(tmp_path / "q", wq, 1)).view(np.float32)
    ordered_k = read_rows(stored(tmp_path / "k", wk, 1)).view(np.float32)
    interleaved = score(wq @ x, wk @ y, [(2 * i, 2 * i + 1) for i in range(4)])
    assert score(ordered_q @ x, ordered_k @ y, [(i, i + 4) for i in range(4)]) == pytest.approx(interleaved, rel=1e-5)


def test_q_and_k_of_a_llama_file_are_reordered_and_nothing_else(tmp_path: Path) -> None:
    raw = raw_gguf()
    plain = open_checkpoint(write_folder(tmp_path / "folder"))
    file = open_checkpoint(raw.write(tmp_path / "model.gguf"))
    for name, entry in plain.entries.items():
        values, found = read_rows(entry), read_rows(file.entries[name])
        heads = {"q_proj": 4, "k_proj": 2}.get(name.split(".")[-2], 0)
        assert (name in (Q0, K0)) <= bool(heads)
        expected = values[half_split_order(len(values), heads)] if heads else values
        np.testing.assert_array_equal(found, expected)


def test_rows_are_a_read_only_map_of_the_file(tmp_path: Path) -> None:
    values = np.ones((4, 4), np.float32)
    entry = stored(tmp_path / "f", values, 0)
    rows = read_rows(entry)
    assert isinstance(rows, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        rows[0, 0] = 1
    # What is written to the file shows: the bytes were never copied.
    with (tmp_path / "f").open("r+b") as stream:
        stream.seek(4)
        stream.write(b"\xaa")
        os.fsync(stream.fileno())
    assert rows[0, 0] == 0xAA


def test_opening_reads_no_weights(tmp_path: Path) -> None:
    """An embedding of 8 GiB, all of it a hole in the file, opens and maps at once."""
    raw = raw_gguf()
    del raw.tensors["token_embd.weight"], raw.tensors["output.weight"]
    raw.tensors["token_embd.weight"] = RawTensor((32, 1 << 26), b"")
    file = raw.write(tmp_path / "model.gguf")
    os.truncate(file, 16 << 30)
    entry = open_checkpoint(file).entries["model.embed_tokens.weight"]
    assert entry.nbytes == 8 << 30
    assert not read_rows(entry)[-1].any()


def test_sizes_beyond_64_bits_are_counted_exactly() -> None:
    entry = TensorEntry("t", ENCODINGS["F32"], (1 << 32, 1 << 32, 1 << 32), Path("f"), 0)
    assert entry.rows == 1 << 64
    assert entry.nbytes == 4 << 96
    assert TensorEntry("v", ENCODINGS["Q8_0"], (64,), Path("f"), 0).nbytes == 68
