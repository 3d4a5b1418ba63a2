"""A damaged or hostile safetensors file is one clear error, and never costs more than reading its header."""

from __future__ import annotations

import resource
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from pagemill_replica.checkpoint import CheckpointError
from pagemill_replica.checkpoint.safetensors_file import MAX_HEADER_BYTES, read_index
from pagemill_replica.checkpoint.tensors import read_rows
from support.checkpoints import raw_safetensors


def about(shape: object, begin: object, end: object, dtype: object = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


A = about([2, 3], 0, 24)
B = about([4], 24, 40)
DATA = bytes(range(40))

DAMAGED = {
    "empty": (b"", r"is not a safetensors file, or is truncated: it has 0 bytes"),
    "shorter than its length": (b"\x01\x02", r"it has 2 bytes"),
    "header past the end": (raw_safetensors({}, length=1000), r"calls for a header of 1000; copy or download"),
    "header of 2^63 bytes": (raw_safetensors({}, length=1 << 63), r"calls for a header of 9223372036854775808"),
    "no JSON": (raw_safetensors(b"{not json"), r"its safetensors header is corrupt"),
    "no UTF-8": (raw_safetensors(b'{"\xff": 1}'), r"its safetensors header is corrupt"),
    "nested for ever": (raw_safetensors(b'{"a":' + b"[" * 200_000), r"corrupt: nested too deeply"),
    "no object": (raw_safetensors([1, 2]), r"its safetensors header is not an object"),
    "entry that is no object": (raw_safetensors({"a": 7}), r"corrupt at tensor 'a'"),
    "no offsets": (raw_safetensors({"a": {"dtype": "F32", "shape": [1]}}), r"corrupt at tensor 'a'"),
    "one offset": (
        raw_safetensors({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0]}}),
        r"corrupt at tensor 'a'",
    ),
    "negative offset": (raw_safetensors({"a": about([1], -4, 0)}, DATA), r"corrupt at tensor 'a'"),
    "fractional offset": (raw_safetensors({"a": about([1], 0.0, 4.0)}, DATA), r"corrupt at tensor 'a'"),
    "truth as an offset": (raw_safetensors({"a": about([], False, 4)}, DATA[:4]), r"corrupt at tensor 'a'"),
    "negative size": (raw_safetensors({"a": about([-2, -3], 0, 24)}, DATA), r"corrupt at tensor 'a'"),
    "size of 2^64": (raw_safetensors({"a": about([1 << 64, 0], 0, 0)}), r"corrupt at tensor 'a'"),
    "thousands of dimensions": (raw_safetensors({"a": about([1] * 9, 0, 4)}, DATA), r"corrupt at tensor 'a'"),
    "numbers of many digits": (raw_safetensors(b'{"a":' + b"9" * 5000 + b"}"), r"header is corrupt"),
    "end before begin": (raw_safetensors({"a": about([0], 8, 4)}, DATA), r"tensor a of shape \[0\] cannot lie in"),
    "shape of another length": (raw_safetensors({"a": about([5], 0, 24)}, DATA), r"tensor a of shape \[5\] cannot lie"),
    "unknown type": (raw_safetensors({"a": about([24], 0, 24, "F8_E4M3")}, DATA), r"tensor a has type F8_E4M3; sup"),
    "type that is no text": (raw_safetensors({"a": about([24], 0, 24, ["F32"])}, DATA), r"corrupt at tensor 'a'"),
    "truncated data": (raw_safetensors({"a": A, "b": B}, DATA[:-1]), r"is truncated: tensor b ends at byte"),
    "data past its tensors": (raw_safetensors({"a": A, "b": B}, DATA + b"x"), r"corrupt: its tensors end at byte"),
    "overlap": (raw_safetensors({"a": A, "b": about([4], 20, 36)}, DATA[:36]), r"tensor b at byte \d+ overlaps"),
    "same bytes twice": (raw_safetensors({"a": A, "b": A}, DATA[:24]), r"tensor b at byte \d+ overlaps"),
    "gap": (raw_safetensors({"b": B}, DATA), r"tensor b at byte \d+ leaves a gap after byte"),
    "name twice": (raw_safetensors(b'{"a":{"dtype":"F16"},"a":{"dtype":"F32"}}'), r"corrupt: 'a' occurs twice"),
    "Git LFS pointer": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n",
        r"is a Git LFS pointer, .*`git lfs pull`",
    ),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_damage_is_one_line_that_names_the_file(damage: str, tmp_path: Path) -> None:
    content, reason = DAMAGED[damage]
    file = tmp_path / "model.safetensors"
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match=reason) as caught:
        read_index(file)
    line = str(caught.value)
    assert line.startswith(f"{file}: ")
    assert "\n" not in line


def test_sound_files_of_the_safetensors_package_are_read_back(tmp_path: Path) -> None:
    generator = np.random.default_rng(1)
    arrays = {
        "wide": generator.normal(size=(3, 5)).astype(np.float32),
        "half": generator.normal(size=(7,)).astype(np.float16),
        "deep": generator.normal(size=(2, 3, 4)).astype(np.float32),
        "one": np.array(3.5, np.float32),
        "none": np.zeros((0, 4), np.float32),
    }
    file = tmp_path / "model.safetensors"
    file.write_bytes(save(arrays, metadata={"format": "pt"}))
    entries = read_index(file)
    assert entries.keys() == arrays.keys()
    for name, values in arrays.items():
        assert entries[name].shape == (values.shape or (1,))
        assert entries[name].nbytes == values.nbytes
        if values.size:
            assert read_rows(entries[name]).tobytes() == values.tobytes()


def test_a_header_that_claims_gigabytes_allocates_nothing(tmp_path: Path) -> None:
    """A sparse file backs the claim, so that only the format's own limit stands between it and the allocation."""
    file = tmp_path / "model.safetensors"
    with file.open("wb") as stream:
        stream.write(raw_safetensors({}, length=64 << 30))
        stream.truncate(65 << 30)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(CheckpointError, match="calls for a header"):
        read_index(file)
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < MAX_HEADER_BYTES


def test_a_hostile_name_gives_a_short_printable_line(tmp_path: Path) -> None:
    name = "\x1b[2J\ud800\n" + "n" * 100_000
    file = tmp_path / "model.safetensors"
    file.write_bytes(raw_safetensors({name: about([1], 0, 9)}, DATA))
    with pytest.raises(CheckpointError) as caught:
        read_index(file)
    line = str(caught.value)
    assert line.isprintable()
    assert line.encode()
    assert len(line) < 1200
    assert line.endswith("copy or download it again")


def test_a_file_that_has_shrunk_since_is_an_error_when_read(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(raw_safetensors({"a": A, "b": B}, DATA))
    entry = read_index(file)["b"]
    file.write_bytes(file.read_bytes()[:-4])
    with pytest.raises(CheckpointError, match=r"model\.safetensors: tensor b cannot be read"):
        read_rows(entry)
    file.unlink()
    with pytest.raises(CheckpointError, match="tensor b cannot be read"):
        read_rows(entry)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"gone\.safetensors: cannot be read: No such file"):
        read_index(tmp_path / "gone.safetensors")
