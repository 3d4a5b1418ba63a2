"""A GGUF file as a checkpoint."""

from __future__ import annotations

import itertools
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from pagemill_replica.checkpoint.checkpoint import Checkpoint
from pagemill_replica.checkpoint.config import ModelConfig
from pagemill_replica.checkpoint.errors import AGAIN, CheckpointError
from pagemill_replica.checkpoint.fields import Fields
from pagemill_replica.checkpoint.gguf_config import (
    INTERLEAVED,
    canonical_name,
    parse_config,
    parse_generation,
)
from pagemill_replica.checkpoint.gguf_file import GgufHeader, GgufTensor, read_header
from pagemill_replica.checkpoint.gguf_rope import FREQUENCY_FACTORS, read_factors
from pagemill_replica.checkpoint.layout import check_tensors
from pagemill_replica.checkpoint.tensors import ENCODINGS, TensorEntry


def open_file(file: Path) -> Checkpoint:
    """Reads metadata and tensor index of a file and checks them against each other.

    No weights are read but the frequency factors, some dozen numbers that are part of the config.
    """
    header = read_header(file)
    fields = Fields(file, header.metadata)
    if fields.integer("split.count", 1) > 1:
        raise CheckpointError(file, "is one part of a split model; merge the parts first (llama-gguf-split --merge)")
    tensors = _named(file, header)
    config = parse_config(fields, {name: tensor.shape for name, tensor in tensors.items()})
    interleaved = fields.text("general.architecture") in INTERLEAVED
    entries = {
        name: _entry(file, name, tensor, header.size, _interleaved_heads(name, config) if interleaved else 0)
        for name, tensor in tensors.items()
    }
    _check_apart(file, entries.values())
    factors = entries.pop(FREQUENCY_FACTORS, None)
    needed = check_tensors(entries, config, file)
    if factors is not None:
        config = replace(config, rope_scaling=read_factors(factors, config))
    return Checkpoint(
        path=file,
        kind="gguf",
        config=config,
        generation=parse_generation(fields, config),
        metadata=header.metadata,
        entries=needed,
        files=[file],
    )


def _named(file: Path, header: GgufHeader) -> dict[str, GgufTensor]:
    tensors: dict[str, GgufTensor] = {}
    for tensor in header.tensors:
        name = canonical_name(tensor.name) or tensor.name
        if name in tensors:
            raise CheckpointError(file, f"is corrupt: {tensors[name].name} and {tensor.name} are the same tensor")
        tensors[name] = tensor
    return tensors


def _interleaved_heads(name: str, config: ModelConfig) -> int:
    if ".self_attn.q_proj." in name:
        return config.heads
    return config.kv_heads if ".self_attn.k_proj." in name else 0


def _entry(file: Path, name: str, tensor: GgufTensor, size: int, interleaved_heads: int) -> TensorEntry:
    encoding = ENCODINGS.get(tensor.type_name)
    if encoding is None:
        supported = ", ".join(ENCODINGS)
        raise CheckpointError(file, f"tensor {tensor.name} has type {tensor.type_name}; supported are {supported}")
    if tensor.shape[-1] % encoding.block:
        raise CheckpointError(
            file, f"is corrupt: rows of {tensor.shape[-1]} in tensor {tensor.name} cannot be {encoding.name}; {AGAIN}"
        )
    if interleaved_heads and len(tensor.shape) == 1 and encoding.block > 1:
        raise CheckpointError(file, f"tensor {tensor.name} is a vector of type {encoding.name}; supported is F32")
    entry = TensorEntry(name, encoding, tensor.shape, file, tensor.offset, interleaved_heads)
    if entry.offset + entry.nbytes > size:
        end = entry.offset + entry.nbytes
        raise CheckpointError(
            file, f"is truncated: tensor {tensor.name} ends at byte {end}, the file at {size}; {AGAIN}"
        )
    return entry


def _check_apart(file: Path, entries: Collection[TensorEntry]) -> None:
    for first, second in itertools.pairwise(sorted(entries, key=lambda e: (e.offset, e.nbytes))):
        if first.offset + first.nbytes > second.offset:
            raise CheckpointError(file, f"is corrupt: tensors {first.name} and {second.name} overlap; {AGAIN}")
