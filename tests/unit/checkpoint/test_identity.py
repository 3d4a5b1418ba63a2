"""The model's identity: changes with everything that decides what a KV block holds, and with nothing else."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from pagemill_replica.checkpoint import CheckpointError, open_checkpoint
from pagemill_replica.checkpoint.huggingface import TOKENIZER_FILES
from pagemill_replica.checkpoint.identity import hash_weight_file
from support.checkpoints import (
    RawTensor,
    f32,
    llama,
    random_weights,
    raw_gguf,
    string,
    write_folder,
    write_json,
    write_shards,
)


def identity(path: Path, cache: Path | None = None) -> str:
    return open_checkpoint(path).identity(cache)


def test_equal_models_in_different_places_are_equal(tmp_path: Path) -> None:
    first = identity(write_folder(tmp_path / "a"))
    assert first == identity(write_folder(tmp_path / "b" / "c"))
    assert len(bytes.fromhex(first)) == 32
    one, two = raw_gguf().write(tmp_path / "one.gguf"), raw_gguf().write(tmp_path / "two.gguf")
    assert identity(one) == identity(two) != first


@pytest.mark.parametrize("name", TOKENIZER_FILES)
def test_each_file_of_tokenizer_and_template_counts(name: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path)
    seen = {identity(folder)}
    for content in ("", "a", "b"):
        (folder / name).write_text(content)
        seen.add(identity(folder))
    assert len(seen) == 4


def test_a_file_moved_to_another_name_counts(tmp_path: Path) -> None:
    folder = write_folder(tmp_path)
    (folder / "vocab.json").write_text("x")
    before = identity(folder)
    (folder / "vocab.json").rename(folder / "merges.txt")
    assert identity(folder) != before


def test_config_and_weights_count_and_advice_and_notes_do_not(tmp_path: Path) -> None:
    folder = write_folder(tmp_path)
    before = identity(folder)
    write_json(folder / "generation_config.json", {"temperature": 0.1})
    (folder / "README.md").write_text("notes")
    assert identity(folder) == before
    write_json(folder / "config.json", llama(rope_theta=20000.0))
    assert identity(folder) != before
    write_folder(folder, weights=random_weights(llama(), seed=1))
    assert identity(folder) != before


def test_any_shard_counts(tmp_path: Path) -> None:
    weights = random_weights(llama())
    write_shards(tmp_path, weights)
    seen = {identity(tmp_path)}
    for name in (next(iter(weights)), list(weights)[-1]):
        write_shards(tmp_path, {**weights, name: weights[name] + np.float32(1)})
        seen.add(identity(tmp_path))
    assert len(seen) == 3


def test_metadata_of_a_gguf_file_counts(tmp_path: Path) -> None:
    raw = raw_gguf()
    before = identity(raw.write(tmp_path / "model.gguf"))
    raw.metadata["tokenizer.chat_template"] = string("{{ messages }}")
    assert identity(raw.write(tmp_path / "model.gguf")) != before


def test_the_scaling_of_rotation_counts(tmp_path: Path) -> None:
    """Keys are rotated before they are kept, so blocks of another scaling hold other numbers."""
    seen = set()
    for number, factor in enumerate((None, 2.0, 4.0)):
        scaling = factor and {"rope_type": "linear", "factor": factor}
        seen.add(identity(write_folder(tmp_path / str(number), llama(rope_scaling=scaling))))
    assert len(seen) == 3
    for factor in (2.0, 4.0):
        raw = raw_gguf()
        raw.metadata["llama.rope.scaling.factor"] = f32(factor)
        seen.add(identity(raw.write(tmp_path / "linear.gguf")))
        raw = raw_gguf()
        raw.tensors["rope_freqs.weight"] = RawTensor((4,), np.array([1, 1, 2, factor], np.float32).tobytes())
        seen.add(identity(raw.write(tmp_path / "factors.gguf")))
    assert len(seen) == 7


def test_overrides_count_each_for_itself(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_folder(tmp_path))
    variants = [(), (b"",), (b"ab",), (b"a", b"b"), (b"b", b"a")]
    assert len({checkpoint.identity(overrides=variant) for variant in variants}) == len(variants)


def test_a_hash_is_remembered_by_path_size_and_time(tmp_path: Path) -> None:
    file, cache = tmp_path / "w", tmp_path / "cache"
    file.write_bytes(b"one")
    first = hash_weight_file(file, cache)
    stamp = file.stat()
    # The same size and time: the file is not read again, which is how one sees that the hash was remembered.
    file.write_bytes(b"two")
    os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert hash_weight_file(file, cache) == first
    assert hash_weight_file(file, None) != first
    os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns + 1))
    second = hash_weight_file(file, cache)
    assert second == hash_weight_file(file, None)
    file.write_bytes(b"three")
    os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns + 1))
    third = hash_weight_file(file, cache)
    assert third == hash_weight_file(file, None)
    other = tmp_path / "other"
    shutil.copy2(file, other)
    other.write_bytes(b"eerht")
    os.utime(other, ns=(stamp.st_atime_ns, stamp.st_mtime_ns + 1))
    assert hash_weight_file(other, cache) == hash_weight_file(other, None) != third


@pytest.mark.parametrize(
    "record", [b"", b"{", b"[]", b'"text"', b"{}", b'{"sha256": 3}', b'{"sha256": "00"}', b"[" * 200_000, b"\xff"]
)
def test_a_damaged_record_costs_a_hashing_and_is_written_again(record: bytes, tmp_path: Path) -> None:
    file, cache = tmp_path / "w", tmp_path / "cache"
    file.write_bytes(b"one")
    first = hash_weight_file(file, cache)
    (kept,) = cache.iterdir()
    sound = kept.read_bytes()
    kept.write_bytes(record)
    assert hash_weight_file(file, cache) == first
    assert [entry.read_bytes() for entry in cache.iterdir()] == [sound]


def test_a_record_of_another_file_is_not_believed(tmp_path: Path) -> None:
    file, cache = tmp_path / "w", tmp_path / "cache"
    file.write_bytes(b"one")
    first = hash_weight_file(file, cache)
    (kept,) = cache.iterdir()
    kept.write_text(json.dumps({**json.loads(kept.read_text()), "path": "/else", "sha256": "00" * 32}))
    assert hash_weight_file(file, cache) == first


def test_a_cache_that_cannot_be_written_costs_the_hashing_alone(tmp_path: Path) -> None:
    file, blocker = tmp_path / "w", tmp_path / "blocker"
    file.write_bytes(b"one")
    blocker.touch()
    for cache in (blocker, blocker / "below", Path("/proc/nothing")):
        assert hash_weight_file(file, cache) == hash_weight_file(file, None)


def test_a_name_that_is_no_utf8_is_remembered_too(tmp_path: Path) -> None:
    file, cache = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.gguf")), tmp_path / "cache"
    file.write_bytes(b"one")
    assert hash_weight_file(file, cache) == hash_weight_file(file, None)
    assert len(list(cache.iterdir())) == 1


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    folder = write_folder(tmp_path)
    checkpoint = open_checkpoint(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model\.safetensors: cannot be read: No such file"):
        checkpoint.identity()
