"""From files to a decoder: fused projections, types, what is counted, what is told of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from pagemill_replica.checkpoint import CheckpointError, open_checkpoint
from pagemill_replica.checkpoint.tensors import ENCODINGS, TensorEntry
from pagemill_replica.model import Decoder, load
from pagemill_replica.model.weights import CHUNK_NUMBERS, read_stacked, read_tensor
from support.checkpoints import llama, random_weights, raw_gguf, write_folder, write_json

CPU = torch.device("cpu")


def entry(file: Path, values: np.ndarray, encoding: str = "F32", heads: int = 0) -> TensorEntry:
    file.write_bytes(values.tobytes())
    return TensorEntry(file.name, ENCODINGS[encoding], values.shape, file, 0, heads)


def decoder_of(path: Path, dtype: torch.dtype = torch.float32, **options: int) -> tuple[Decoder, list[float]]:
    told: list[float] = []
    return load(open_checkpoint(path), dtype, CPU, False, lambda _stage, done: told.append(done), **options), told


def test_projections_are_stacked_in_the_order_given(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    parts = [generator.normal(size=(rows, 6)).astype(np.float32) for rows in (4, 2, 3)]
    stacked = read_stacked([entry(tmp_path / str(i), part) for i, part in enumerate(parts)], torch.float32)
    np.testing.assert_array_equal(stacked.numpy(), np.concatenate(parts))
    vectors = [part[:, 0].copy() for part in parts]
    joined = read_stacked([entry(tmp_path / f"v{i}", part) for i, part in enumerate(vectors)], torch.float32)
    np.testing.assert_array_equal(joined.numpy(), np.concatenate(vectors))


@pytest.mark.parametrize("rows", [1, 3, 2 * CHUNK_NUMBERS // 1024 + 1])
def test_tensors_larger_than_a_chunk_are_whole(rows: int, tmp_path: Path) -> None:
    values = np.random.default_rng(rows).normal(size=(rows, 1024)).astype(np.float32)
    assert torch.equal(read_tensor(entry(tmp_path / "t", values), torch.float32), torch.from_numpy(values))


def test_a_row_wider_than_a_chunk_is_whole(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(2, CHUNK_NUMBERS + 5)).astype(np.float32)
    assert torch.equal(read_tensor(entry(tmp_path / "t", values), torch.float32), torch.from_numpy(values))


def test_an_interleaved_bias_joins_in_half_split_order(tmp_path: Path) -> None:
    values = np.arange(8, dtype=np.float32)
    joined = read_stacked([entry(tmp_path / "q", values, heads=2), entry(tmp_path / "v", values)], torch.float32)
    assert joined.tolist() == [0, 2, 1, 3, 4, 6, 5, 7, *range(8)]


@pytest.mark.parametrize("stored", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("wanted", [torch.float32, torch.bfloat16])
def test_types_convert_as_torch_converts(stored: torch.dtype, wanted: torch.dtype, tmp_path: Path) -> None:
    config = llama()
    weights = {name: torch.from_numpy(array) for name, array in random_weights(config).items()}
    weights["model.embed_tokens.weight"] = torch.randn(48, 32, generator=torch.Generator().manual_seed(1)).to(stored)
    write_json(tmp_path / "config.json", config)
    save_file(weights, tmp_path / "model.safetensors")
    found = read_tensor(open_checkpoint(tmp_path).entries["model.embed_tokens.weight"], wanted)
    assert found.dtype == wanted
    assert torch.equal(found, weights["model.embed_tokens.weight"].to(wanted))


def test_progress_rises_from_0_to_1(tmp_path: Path) -> None:
    _, told = decoder_of(write_folder(tmp_path))
    assert told[0] == 0.0
    assert told[-1] == 1.0
    assert told == sorted(told)
    assert len(told) > 10


@pytest.mark.parametrize("tied", [False, True])
def test_bytes_are_those_of_all_tensors(tied: bool, tmp_path: Path) -> None:
    config = llama(tie_word_embeddings=tied)
    decoder, _ = decoder_of(write_folder(tmp_path, config))
    stored = sum(array.nbytes for array in random_weights(config).values())
    tables = 2 * 128 * 4 * 4
    # A tied head may be packed into memory of its own, and packing may round up.
    slack = 48 * 32 * 4 if tied else 0
    assert stored + tables <= decoder.weight_bytes <= (stored + tables + slack) * 1.5


def test_a_shorter_context_has_shorter_tables(tmp_path: Path) -> None:
    folder = write_folder(tmp_path)
    assert decoder_of(folder)[0].max_positions == 128
    assert decoder_of(folder, max_context=40)[0].max_positions == 40


def test_the_cache_is_laid_out_for_the_model(tmp_path: Path) -> None:
    layout = decoder_of(write_folder(tmp_path), torch.bfloat16)[0].kv_layout(16)
    assert (layout.layers, layout.kv_heads, layout.head_dim, layout.block_size) == (2, 2, 8, 16)
    assert layout.dtype == torch.bfloat16


def test_a_file_cut_after_it_was_opened_is_named(tmp_path: Path) -> None:
    file = raw_gguf().write(tmp_path / "model.gguf")
    checkpoint = open_checkpoint(file)
    file.write_bytes(file.read_bytes()[:-64])
    with pytest.raises(CheckpointError, match=r"model\.gguf: tensor lm_head\.weight cannot be read"):
        load(checkpoint, torch.float32, CPU, False, lambda _stage, _done: None)
