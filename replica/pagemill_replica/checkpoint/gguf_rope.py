"""Rotation as a GGUF file tells it: linear scaling in metadata, any other as a tensor of divisors."""

from __future__ import annotations

from pagemill_replica.checkpoint.config import ModelConfig
from pagemill_replica.checkpoint.dequantise import to_float32
from pagemill_replica.checkpoint.errors import AGAIN, CheckpointError
from pagemill_replica.checkpoint.fields import Fields
from pagemill_replica.checkpoint.rope_scaling import FrequencyFactors, LinearScaling
from pagemill_replica.checkpoint.tensors import TensorEntry, read_rows

FREQUENCY_FACTORS = "rope_freqs.weight"
"""The tensor in which llama.cpp's converter keeps the scaling of Llama 3.1 and later."""


def parse_scaling(own: Fields) -> LinearScaling | None:
    """The scaling that the architecture's own metadata tells of, None where there is none.

    As in llama.cpp a factor without a type means linear scaling, and a factor of 0 or 1 none.
    """
    if own.number("rope.scaling.attn_factor", 1.0) != 1.0:
        raise CheckpointError(own.file, "attention scaled beside rotation (rope.scaling.attn_factor) is not supported")
    kind = own.text("rope.scaling.type", "linear")
    if kind in ("none", ""):
        return None
    if kind != "linear":
        raise CheckpointError(
            own.file,
            f"rope scaling of type {kind[:80]} is not supported; supported: none, linear, and llama3 as a tensor"
            f" {FREQUENCY_FACTORS}. Use a variant of the model with one of these",
        )
    factor = own.number("rope.scaling.factor", own.number("rope.scale_linear", 1.0))
    return None if factor in (0.0, 1.0) else LinearScaling(factor)


def read_factors(entry: TensorEntry, config: ModelConfig) -> FrequencyFactors:
    """The divisors of `rope_freqs.weight` for the heads of a config that agrees with the file's other tensors."""
    if config.rope_scaling is not None:
        raise CheckpointError(
            entry.file, f"scales its rotation twice, by {FREQUENCY_FACTORS} and by its metadata; convert it again"
        )
    pairs = config.head_dim // 2
    if entry.shape != (pairs,):
        raise CheckpointError(
            entry.file, f"tensor {entry.name} has shape {list(entry.shape)}; the head size says {[pairs]}"
        )
    factors = FrequencyFactors(tuple(to_float32(entry.encoding, read_rows(entry))[0].tolist()))
    problem = factors.problem(pairs)
    if problem:
        raise CheckpointError(entry.file, f"is corrupt: tensor {entry.name}: {problem}; {AGAIN}")
    return factors
