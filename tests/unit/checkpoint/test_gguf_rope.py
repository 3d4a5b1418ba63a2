"""Rotation in a GGUF file: linear scaling from metadata, divisors from a tensor, and what is refused."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from pagemill_replica.checkpoint import Checkpoint, CheckpointError, open_checkpoint
from pagemill_replica.checkpoint.rope_scaling import FrequencyFactors, LinearScaling
from support.checkpoints import RawGguf, RawTensor, f32, llama, raw_gguf, string, u32

NAME = "rope_freqs.weight"
F16 = 1
Q8_0 = 8
Changes = dict[str, tuple[int, bytes]]


def opened(tmp_path: Path, raw: RawGguf) -> Checkpoint:
    return open_checkpoint(raw.write(tmp_path / "model.gguf"))


def floats(*values: float) -> RawTensor:
    return RawTensor((len(values),), struct.pack(f"<{len(values)}f", *values))


def with_factors(tensor: RawTensor, changes: Changes | None = None) -> RawGguf:
    """Heads of 8 numbers: 4 pairs. The tensor comes first, as llama.cpp's converter writes it."""
    raw = raw_gguf()
    raw.tensors = {NAME: tensor, **raw.tensors}
    raw.metadata |= changes or {}
    return raw


@pytest.mark.parametrize(
    ("changes", "factor"),
    [
        ({"rope.scaling.type": string("linear"), "rope.scaling.factor": f32(4.0)}, 4.0),
        ({"rope.scaling.factor": f32(2.5)}, 2.5),
        ({"rope.scale_linear": f32(2.0)}, 2.0),
        ({"rope.scaling.factor": f32(4.0), "rope.scale_linear": f32(2.0)}, 4.0),
        ({"rope.scaling.factor": f32(4.0), "rope.scaling.attn_factor": f32(1.0)}, 4.0),
        ({}, None),
        ({"rope.scaling.type": string("none"), "rope.scaling.factor": f32(4.0)}, None),
        ({"rope.scaling.type": string(""), "rope.scaling.factor": f32(4.0)}, None),
        ({"rope.scaling.type": string("linear")}, None),
        ({"rope.scaling.factor": f32(1.0)}, None),
        ({"rope.scaling.factor": f32(0.0)}, None),
    ],
)
@pytest.mark.parametrize("arch", ["llama", "qwen2"])
def test_linear_scaling_is_read_from_metadata(
    changes: Changes, factor: float | None, arch: str, tmp_path: Path
) -> None:
    raw = raw_gguf() if arch == "llama" else raw_gguf(llama(architectures=["Qwen2ForCausalLM"]), arch)
    raw.metadata |= {f"{arch}.{key}": value for key, value in changes.items()}
    scaling = opened(tmp_path, raw).config.rope_scaling
    assert scaling == (None if factor is None else LinearScaling(factor))


@pytest.mark.parametrize(
    "tensor", [floats(1.0, 1.5, 8.0, 1e30), RawTensor((4,), struct.pack("<4e", 1.0, 1.5, 8.0, 6e4), F16)]
)
def test_divisors_are_read_from_their_tensor(tensor: RawTensor, tmp_path: Path) -> None:
    checkpoint = opened(tmp_path, with_factors(tensor))
    scaling = checkpoint.config.rope_scaling
    assert isinstance(scaling, FrequencyFactors)
    assert scaling.factors == pytest.approx((1.0, 1.5, 8.0, 1e30 if tensor.kind == 0 else 6e4), rel=1e-3)
    assert checkpoint.entries.keys() == opened(tmp_path, raw_gguf()).entries.keys()


def test_divisors_hold_where_the_metadata_say_that_nothing_is_scaled(tmp_path: Path) -> None:
    raw = with_factors(floats(1, 1, 2, 8), {"llama.rope.scaling.type": string("none")})
    assert opened(tmp_path, raw).config.rope_scaling == FrequencyFactors((1.0, 1.0, 2.0, 8.0))


REFUSED: list[tuple[Changes, str]] = [
    ({"llama.rope.scaling.type": string("yarn")}, r"rope scaling of type yarn is not supported; supported: none, lin"),
    ({"llama.rope.scaling.type": string("longrope")}, r"rope scaling of type longrope .* Use a variant of the model"),
    ({"llama.rope.scaling.type": u32(1)}, r"llama.rope.scaling.type is '1'; it must be a string"),
    ({"llama.rope.scaling.factor": f32(-4.0)}, r"rope scaling has a factor of -4.0; it must be finite and at least 1"),
    ({"llama.rope.scaling.factor": f32(0.25)}, r"rope scaling has a factor of 0.25; it must be finite and at least 1"),
    ({"llama.rope.scaling.factor": f32(float("inf"))}, r"rope.scaling.factor is 'inf'; it must be a finite number"),
    ({"llama.rope.scaling.factor": string("4")}, r"rope.scaling.factor is '4'; it must be a finite number"),
    ({"llama.rope.scaling.attn_factor": f32(1.2)}, r"attention scaled beside rotation \(rope.scaling.attn_factor\) is"),
]


@pytest.mark.parametrize(("changes", "reason"), REFUSED)
def test_metadata_that_cannot_be_turned_are_named(changes: Changes, reason: str, tmp_path: Path) -> None:
    raw = raw_gguf()
    raw.metadata |= changes
    with pytest.raises(CheckpointError, match=reason):
        opened(tmp_path, raw)


FACTORS_REFUSED: list[tuple[RawTensor, str]] = [
    (floats(1, 1, 2), r"tensor rope_freqs.weight has shape \[3\]; the head size says \[4\]"),
    (floats(1, 1, 2, 2, 4, 4, 8, 8), r"tensor rope_freqs.weight has shape \[8\]; the head size says \[4\]"),
    (RawTensor((4, 1), floats(1, 1, 2, 8).data), r"tensor rope_freqs.weight has shape \[1, 4\]; the head size says"),
    (floats(1, 1, 0, 8), r"is corrupt: tensor rope_freqs.weight: a frequency factor is 0.0; it must be finite and"),
    (
        floats(1, -1, 2, 8),
        r"a frequency factor is -1.0; it must be finite and at least 0.001; copy or download it again",
    ),
    (floats(1, 1, 2, float("inf")), r"a frequency factor is inf; it must be finite and at least 0.001"),
    (floats(float("nan"), 1, 2, 8), r"a frequency factor is nan; it must be finite and at least 0.001"),
    (floats(1e-45, 1, 2, 8), r"a frequency factor is 1.4\d+e-45; it must be finite and at least 0.001"),
    (RawTensor((4,), bytes(16), kind=17), r"tensor rope_freqs.weight has type .*; supported are F32"),
    (RawTensor((4,), bytes(34), Q8_0), r"is corrupt: rows of 4 in tensor rope_freqs.weight cannot be Q8_0"),
    (RawTensor((4,), bytes(16), offset=1 << 40), r"is truncated: tensor rope_freqs.weight ends at byte"),
    (RawTensor((4,), bytes(16), offset=64), r"is corrupt: tensors .* and rope_freqs.weight overlap"),
]


@pytest.mark.parametrize(("tensor", "reason"), FACTORS_REFUSED)
def test_divisors_that_cannot_be_are_named(tensor: RawTensor, reason: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=reason):
        opened(tmp_path, with_factors(tensor))


def test_a_file_that_scales_twice_is_refused(tmp_path: Path) -> None:
    """llama.cpp would apply both; no converter writes both, so one of them is a mistake."""
    raw = with_factors(floats(1, 1, 2, 8), {"llama.rope.scaling.factor": f32(4.0)})
    with pytest.raises(CheckpointError, match=r"scales its rotation twice, by rope_freqs.weight and by its metadata"):
        opened(tmp_path, raw)


def test_divisors_under_another_name_are_refused(tmp_path: Path) -> None:
    """Else they would be left out of the computation in silence."""
    for name in ("rope_factors_long.weight", "rope_freqs.bias", "blk.0.rope_freqs.weight"):
        raw = raw_gguf()
        raw.tensors[name] = floats(1, 1, 2, 8)
        with pytest.raises(
            CheckpointError, match=rf"holds tensor {name} that a LlamaForCausalLM of this config has no"
        ):
            opened(tmp_path, raw)
