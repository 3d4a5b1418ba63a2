"""Block hashes: golden vectors, the encoding spelled out once more, and what must differ."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagemill_common.block_hash import HASH_BYTES, BlockHasher

VECTORS = Path(__file__).parents[2] / "vectors" / "block_hash.jsonl"
ROWS = [json.loads(line) for line in VECTORS.read_text(encoding="utf-8").splitlines()]


def u32(value: int) -> bytes:
    return value.to_bytes(4, "little")


def test_golden_vectors() -> None:
    assert len(ROWS) >= 8
    for row in ROWS:
        hasher = BlockHasher(row["model_id"], row["adapter_id"], row["block_size"])
        salt = bytes.fromhex(row["salt"])
        assert hasher.root(salt).hex() == row["root"]
        assert [h.hex() for h in hasher.chain(row["token_ids"], salt)] == row["chain"]


def test_the_encoding_byte_for_byte() -> None:
    model, adapter, salt = "möd".encode(), b"ad", b"\x00\xff"
    fields = u32(len(model)) + model + u32(len(adapter)) + adapter + u32(len(salt)) + salt
    root = hashlib.sha256(b"pagemill-kv-1" + fields + u32(2)).digest()
    child = hashlib.sha256(root + u32(7) + u32(0xFFFFFFFF)).digest()
    hasher = BlockHasher("möd", "ad", 2)
    assert hasher.root(salt) == root
    assert hasher.child(root, [7, 0xFFFFFFFF]) == child
    assert hasher.chain([7, 0xFFFFFFFF, 1], salt) == [child]


@given(ids=st.lists(st.integers(0, 2**32 - 1), max_size=20), size=st.integers(1, 6))
def test_a_chain_is_its_children(ids: list[int], size: int) -> None:
    hasher = BlockHasher("m", "", size)
    chain = hasher.chain(ids)
    assert len(chain) == len(ids) // size
    parent = hasher.root()
    for index, block in enumerate(chain):
        parent = hasher.child(parent, ids[index * size : (index + 1) * size])
        assert parent == block
        assert len(block) == HASH_BYTES


def test_all_that_identifies_a_block_changes_its_hash() -> None:
    ids = list(range(32))
    hashers = [BlockHasher("a", "b", 16), BlockHasher("ab", "", 16), BlockHasher("a", "", 16), BlockHasher("a", "b", 8)]
    firsts = [hasher.chain(ids)[0] for hasher in hashers] + [hashers[0].chain(ids, b"salt")[0]]
    assert len(set(firsts)) == len(firsts)
    other = [*ids[:-1], 99]
    assert hashers[0].chain(ids)[0] == hashers[0].chain(other)[0]
    assert hashers[0].chain(ids)[1] != hashers[0].chain(other)[1]
    # The same block after another one.
    assert hashers[0].chain(ids[16:])[0] != hashers[0].chain(ids)[1]


def test_what_is_no_block_is_refused() -> None:
    hasher = BlockHasher("m", "", 2)
    for ids in ([1], [1, 2, 3], [-1, 2], [2**32, 1]):
        with pytest.raises(ValueError, match=r"tokens|integers"):
            hasher.child(hasher.root(), ids)
    with pytest.raises(ValueError, match="32 bytes"):
        hasher.child(b"short", [1, 2])
    with pytest.raises(ValueError, match="block_size"):
        BlockHasher("m", "", 0)


def test_only_the_standard_library_is_loaded() -> None:
    code = (
        "import sys, pagemill_common.block_hash as b; "
        "print([m for m in sys.modules if m.split('.')[0] in ('numpy','torch','grpc','google','tokenizers','jinja2')])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "[]"
