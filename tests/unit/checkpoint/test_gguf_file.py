"""A damaged or hostile GGUF header is one clear error; a sound one reads as the `gguf` package wrote it."""

from __future__ import annotations

import os
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from pagemill_replica.checkpoint import CheckpointError, open_checkpoint
from pagemill_replica.checkpoint.gguf_file import read_header
from support.checkpoints import RawGguf, RawTensor, array, raw_gguf, string, u32

UP = "blk.1.ffn_up.weight"
AGAIN = "copy or download it again"


def changed(**changes: Any) -> Callable[[RawGguf], None]:
    def change(raw: RawGguf) -> None:
        for name, value in changes.items():
            setattr(raw, name, value)

    return change


def metadata(key: str, value: tuple[int, bytes]) -> Callable[[RawGguf], None]:
    return lambda raw: raw.metadata.update({key: value})


def tensor(name: str, **changes: Any) -> Callable[[RawGguf], None]:
    def change(raw: RawGguf) -> None:
        for field, value in changes.items():
            setattr(raw.tensors[name], field, value)

    return change


def renamed(name: str, to: str) -> Callable[[RawGguf], None]:
    return lambda raw: raw.tensors.update({to: raw.tensors.pop(name)})


def doubled(name: str, other: str) -> Callable[[RawGguf], None]:
    return lambda raw: raw.tensors.update({other: raw.tensors[name]})


def pair_twice(raw: RawGguf) -> None:
    raw.pair_count = len(raw.metadata) + 1
    raw.extra = struct.pack("<Q", 20) + b"general.architecture" + struct.pack("<I", 8) + string("qwen2")[1]


NESTED = array(9, 1, array(9, 1, array(9, 1, array(9, 1, array(9, 1, array(4, 0, b"")[1])[1])[1])[1])[1])

DAMAGED: dict[str, tuple[Callable[[RawGguf], None], str]] = {
    "bad magic": (changed(magic=b"GGML"), r"is not a GGUF file: it starts with b'GGML', not b'GGUF'"),
    "Git LFS pointer": (changed(magic=b"version https://git-lfs.github.com/spec/v1\n"), r"is a Git LFS pointer"),
    "version 1": (changed(version=1), r"is GGUF version 1; supported are little-endian versions 2 and 3"),
    "version 4": (changed(version=4), r"is GGUF version 4; supported are"),
    "big endian": (changed(version=3 << 24), r"is big-endian GGUF; supported are little-endian"),
    "2^63 tensors": (changed(tensor_count=1 << 63), rf"9223372036854775808 entries of tensors would pass .*{AGAIN}"),
    "2^63 pairs": (changed(pair_count=1 << 63), r"9223372036854775808 entries of metadata would pass its end"),
    "more tensors than there are": (changed(tensor_count=40), r"is (truncated or )?corrupt: "),
    "string of 2^63": (metadata("a", (8, struct.pack("<Q", 1 << 63))), r"truncated or corrupt: a would pass its end"),
    "string of 2^64 - 1": (metadata("a", (8, b"\xff" * 8)), r"truncated or corrupt: a would pass its end at byte \d+"),
    "string that is no UTF-8": (metadata("a", string(b"\xff\xfe")), r"is corrupt: a is not UTF-8"),
    "array of 2^63": (metadata("a", array(0, 1 << 63, b"")), r"9223372036854775808 entries of a would pass its end"),
    "array of 2^61 numbers": (metadata("a", array(10, 1 << 61, b"")), r"2305843009213693952 entries of a would pass"),
    "array of 2^62 strings": (metadata("a", array(8, 1 << 62, b"")), r"entries of a would pass its end"),
    "array of an unknown type": (metadata("a", array(99, 1, bytes(8))), r"metadata 'a' has unknown type 99"),
    "value of an unknown type": (metadata("a", (13, bytes(8))), r"metadata 'a' has unknown type 13"),
    "arrays within arrays": (metadata("a", NESTED), r"metadata 'a' has unknown type 9"),
    "key twice": (pair_twice, r"metadata 'general.architecture' occurs twice"),
    "alignment 0": (metadata("general.alignment", u32(0)), r"general.alignment is 0; it must be a power of two of at"),
    "alignment 24": (metadata("general.alignment", u32(24)), r"general.alignment is 24; it must be a power of two"),
    "alignment 4": (metadata("general.alignment", u32(4)), r"general.alignment is 4; it must be a power of two"),
    "alignment that is no number": (metadata("general.alignment", string("32")), r"general.alignment is 32"),
    "no dimensions": (tensor(UP, dimensions=()), rf"tensor '{UP}' has 0 dimensions"),
    "five dimensions": (tensor(UP, dimensions=(32, 64, 1, 1, 1)), rf"tensor '{UP}' has 5 dimensions"),
    "offset past the end": (tensor(UP, offset=1 << 40), rf"is truncated: tensor {UP} ends at byte .*{AGAIN}"),
    "offset of 2^64 - 32": (tensor(UP, offset=(1 << 64) - 32), rf"is truncated: tensor {UP} ends at byte"),
    "offset off the alignment": (tensor(UP, offset=8), rf"tensor '{UP}' starts at 8, not at a multiple of 32"),
    "overlap": (tensor(UP, offset=0), r"tensors .* and .* overlap"),
    "size of 2^64 - 1": (tensor(UP, dimensions=(32, (1 << 64) - 1)), rf"is truncated: tensor {UP} ends at byte"),
    "sizes whose product is 2^64": (tensor(UP, dimensions=(32, 1 << 32, 1 << 32)), rf"is truncated: tensor {UP} ends"),
    "size 0": (tensor(UP, dimensions=(32, 0)), r"tensor .*up_proj.weight has shape \[0, 32\]; config says \[64, 32\]"),
    "dimensions swapped": (tensor(UP, dimensions=(64, 32)), r"has shape \[32, 64\]; config says \[64, 32\]"),
    "K-quant": (tensor(UP, kind=12), rf"tensor {UP} has type Q4_K; supported are F32, F16, BF16, Q8_0, Q4_0, Q4_1"),
    "integers": (tensor(UP, kind=26), rf"tensor {UP} has type I32; supported are"),
    "unheard-of type": (tensor(UP, kind=77), rf"tensor {UP} has type number 77; supported are"),
    "rows that are no whole blocks": (
        tensor(UP, dimensions=(16, 128), kind=8),
        rf"rows of 16 in tensor {UP} cannot be Q8_0",
    ),
    "missing tensor": (lambda raw: raw.tensors.pop(UP), r"lacks tensor model.layers.1.mlp.up_proj.weight that its"),
    "no embedding": (lambda raw: raw.tensors.pop("token_embd.weight"), r"lacks tensor token_embd.weight"),
    "no tensors": (changed(tensors={}), r"lacks tensor token_embd.weight"),
    "unknown tensor": (doubled(UP, "blk.1.ffn_up_exps.weight"), r"tensors .* overlap|holds tensor blk.1.ffn_up_exps"),
    "two names of one layer": (doubled(UP, "blk.01.ffn_up.weight"), r"holds tensor blk.01.ffn_up.weight that a Llama"),
    "digits of another script": (renamed(UP, "blk.١.ffn_up.weight"), r"lacks tensor model.layers.1.mlp.up_proj.weight"),
    "canonical and own name": (
        doubled("output_norm.weight", "model.norm.weight"),
        r"output_norm.weight and model.norm.weight are the same tensor",
    ),
    "tensor past the layers": (renamed(UP, "blk.2.ffn_up.weight"), r"lacks tensor model.layers.1.mlp.up_proj.weight"),
    "part of a split": (metadata("split.count", u32(2)), r"is one part of a split model; merge the parts first"),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_damage_is_one_line_that_names_the_file(damage: str, tmp_path: Path) -> None:
    change, reason = DAMAGED[damage]
    raw = raw_gguf()
    change(raw)
    file = raw.write(tmp_path / "model.gguf")
    with pytest.raises(CheckpointError, match=reason) as caught:
        open_checkpoint(file)
    line = str(caught.value)
    assert line.startswith(f"{file}: ")
    assert line.isprintable()


def test_the_undamaged_file_opens(tmp_path: Path) -> None:
    """Else every case above could fail for a reason of its own."""
    assert len(open_checkpoint(raw_gguf().write(tmp_path / "model.gguf")).entries) == 21


def test_every_cut_of_a_file_is_an_error(tmp_path: Path) -> None:
    content = raw_gguf().encode()
    file = tmp_path / "model.gguf"
    for length in [*range(0, 2500, 7), *range(2500, len(content), 509), len(content) - 1]:
        file.write_bytes(content[:length])
        with pytest.raises(CheckpointError):
            open_checkpoint(file)


def test_a_quantised_bias_of_q_is_refused_not_scrambled(tmp_path: Path) -> None:
    """Its elements cannot be put in order without being decoded."""
    raw = raw_gguf()
    for part, rows in (("q", 32), ("k", 16), ("v", 16)):
        for layer in range(2):
            raw.tensors[f"blk.{layer}.attn_{part}.bias"] = RawTensor((rows,), bytes(rows * 4))
    assert open_checkpoint(raw.write(tmp_path / "sound.gguf")).config.attention_bias
    raw.tensors["blk.0.attn_q.bias"] = RawTensor((32,), bytes(34), kind=8)
    with pytest.raises(
        CheckpointError, match=r"tensor blk\.0\.attn_q\.bias is a vector of type Q8_0; supported is F32"
    ):
        open_checkpoint(raw.write(tmp_path / "model.gguf"))


def test_a_claim_that_the_file_cannot_hold_allocates_nothing(tmp_path: Path) -> None:
    """2^24 strings take 8 bytes each at least, and 64 MiB of zeros behind the header would pass for half of them."""
    raw = raw_gguf()
    raw.metadata = {"a": array(8, 1 << 24, b""), **raw.metadata}
    file = raw.write(tmp_path / "model.gguf")
    os.truncate(file, 64 << 20)
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match="16777216 entries of a would pass its end"):
            open_checkpoint(file)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_metadata_of_every_type_reads_as_the_gguf_package_wrote_it(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_uint8("u8", 255)
    writer.add_int8("i8", -128)
    writer.add_uint16("u16", 65535)
    writer.add_int16("i16", -32768)
    writer.add_uint32("u32", 4294967295)
    writer.add_int32("i32", -2147483648)
    writer.add_uint64("u64", 2**64 - 1)
    writer.add_int64("i64", -(2**63))
    writer.add_float32("f32", 0.5)
    writer.add_float64("f64", 0.1)
    writer.add_bool("yes", True)
    writer.add_string("text", "naïve 🙂")
    writer.add_array("numbers", [3, -1, 2])
    writer.add_array("fractions", [0.5, 0.25])
    writer.add_array("flags", [True, False])
    writer.add_array("texts", ["a", "", "é"])
    writer.add_custom_alignment(64)
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    writer.add_tensor("first", np.ones(5, np.float16))
    writer.add_tensor("second", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    header = read_header(file)
    expected = {
        "general.architecture": "llama",
        "u8": 255,
        "i8": -128,
        "u16": 65535,
        "i16": -32768,
        "u32": 4294967295,
        "i32": -2147483648,
        "u64": 2**64 - 1,
        "i64": -(2**63),
        "f32": 0.5,
        "f64": 0.1,
        "yes": True,
        "text": "naïve 🙂",
        "numbers": [3, -1, 2],
        "fractions": [0.5, 0.25],
        "flags": [True, False],
        "texts": ["a", "", "é"],
        "general.alignment": 64,
    }
    assert header.metadata == expected
    assert header.metadata["yes"] is True
    first, second = header.tensors
    assert (first.name, first.type_name, first.shape) == ("first", "F16", (5,))
    assert (second.name, second.type_name, second.shape) == ("second", "F32", (3, 4))
    assert second.offset % 64 == 0
    assert file.read_bytes()[second.offset :][:48] == values.tobytes()


def test_version_2_and_empty_arrays_are_read(tmp_path: Path) -> None:
    raw = raw_gguf()
    raw.version = 2
    raw.metadata["empty.numbers"] = array(4, 0, b"")
    raw.metadata["empty.texts"] = array(8, 0, b"")
    found = open_checkpoint(raw.write(tmp_path / "model.gguf")).metadata
    assert found["empty.numbers"] == found["empty.texts"] == []
