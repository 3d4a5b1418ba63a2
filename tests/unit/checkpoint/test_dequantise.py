"""Stored forms become the numbers that the `gguf` package gets from the same bytes, bit by bit."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from pagemill_replica.checkpoint.dequantise import to_float32
from pagemill_replica.checkpoint.tensors import ENCODINGS, Bytes

QUANTISED = ("Q8_0", "Q4_0", "Q4_1")


def random_blocks(name: str, rows: int, blocks: int) -> Bytes:
    """Any bytes, but for scales: halves of every finite exponent, signed, subnormal ones among them."""
    encoding = ENCODINGS[name]
    generator = np.random.default_rng(len(name) + rows)
    content = generator.integers(0, 256, (rows, blocks, encoding.block_bytes), dtype=np.uint8)
    for at in range(0, {"Q8_0": 2, "Q4_0": 2, "Q4_1": 4}[name], 2):
        bits = generator.integers(0, 1 << 16, (rows, blocks), dtype=np.uint16) & 0xFBFF
        content[..., at : at + 2] = bits[..., None].view(np.uint8)
    return content.reshape(rows, -1)


@pytest.mark.parametrize("name", QUANTISED)
@pytest.mark.parametrize(("rows", "blocks"), [(1, 1), (5, 3), (64, 7)])
def test_blocks_of_any_bytes_equal_the_gguf_packages(name: str, rows: int, blocks: int) -> None:
    content = random_blocks(name, rows, blocks)
    ours = to_float32(ENCODINGS[name], content)
    theirs = gguf.quants.dequantize(content, gguf.GGMLQuantizationType[name])
    assert ours.dtype == np.float32
    assert ours.shape == (rows, blocks * 32)
    np.testing.assert_array_equal(ours.view(np.uint32), theirs.astype(np.float32).view(np.uint32))


@pytest.mark.parametrize("name", QUANTISED)
def test_encodings_have_the_sizes_of_ggml(name: str) -> None:
    encoding = ENCODINGS[name]
    assert (encoding.block, encoding.block_bytes) == gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]


def test_a_4_bit_block_keeps_its_second_half_in_the_high_nibbles() -> None:
    packed = bytes(range(16)) + b""
    block = np.frombuffer(np.float16(2).tobytes() + packed, np.uint8)[None]
    low = [2.0 * (value - 8) for value in range(16)]
    assert to_float32(ENCODINGS["Q4_0"], block)[0].tolist() == low + [-16.0] * 16


@pytest.mark.parametrize("dtype", ["F32", "F16"])
def test_plain_numbers_are_kept(dtype: str) -> None:
    values = np.array([[0.0, -0.0, 1.5, np.inf, 6e-8, -65504.0]], {"F32": np.float32, "F16": np.float16}[dtype])
    found = to_float32(ENCODINGS[dtype], values.view(np.uint8))
    np.testing.assert_array_equal(found.view(np.uint32), values.astype(np.float32).view(np.uint32))


def test_bfloat16_is_the_upper_half_of_a_float32() -> None:
    values = np.array([[1.0, -2.5, 3.0e38, 1e-40]], np.float32)
    upper = (values.view(np.uint32) >> 16).astype(np.uint16)
    found = to_float32(ENCODINGS["BF16"], upper.view(np.uint8))
    np.testing.assert_array_equal(found.view(np.uint32), values.view(np.uint32) & 0xFFFF0000)


def test_rows_of_a_wider_array_are_read_by_their_strides() -> None:
    content = random_blocks("Q8_0", 6, 2)
    np.testing.assert_array_equal(
        to_float32(ENCODINGS["Q8_0"], content[::2]), to_float32(ENCODINGS["Q8_0"], content)[::2]
    )
