"""A Hugging Face folder: config.json, generation_config.json, safetensors weights in one file or in shards."""

from __future__ import annotations

import json
from pathlib import Path

from pagemill_replica.checkpoint.checkpoint import Checkpoint
from pagemill_replica.checkpoint.errors import AGAIN, CheckpointError
from pagemill_replica.checkpoint.fields import Fields
from pagemill_replica.checkpoint.files import is_file, refuse_pointer
from pagemill_replica.checkpoint.hf_config import parse_config, parse_generation
from pagemill_replica.checkpoint.layout import check_tensors
from pagemill_replica.checkpoint.safetensors_file import read_index
from pagemill_replica.checkpoint.tensors import TensorEntry

CONFIG = "config.json"
MAX_JSON_BYTES = 64 * 1024 * 1024
"""Of a config or an index of shards; the largest published ones have some MiB."""
GENERATION = "generation_config.json"
SINGLE = "model.safetensors"
SHARDED = "model.safetensors.index.json"
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.json",
    "chat_template.jinja",
)
"""Files that decide how text becomes ids; those present are part of the model's identity."""


def open_folder(folder: Path) -> Checkpoint:
    """Reads config and tensor index of a folder and checks them against each other; no weights are read."""
    config = parse_config(_json(folder / CONFIG))
    generation_file = folder / GENERATION
    generation = parse_generation(_json(generation_file) if is_file(generation_file) else None, config)
    entries, source = _entries(folder)
    needed = check_tensors(entries, config, source)
    return Checkpoint(
        path=folder,
        kind="huggingface",
        config=config,
        generation=generation,
        metadata={},
        entries=needed,
        files=sorted({entry.file for entry in entries.values()}),
        identity_files=[folder / CONFIG, *(folder / name for name in TOKENIZER_FILES if is_file(folder / name))],
    )


def _entries(folder: Path) -> tuple[dict[str, TensorEntry], Path]:
    """All tensors of the folder, and the file to name when one is missing."""
    single, sharded = is_file(folder / SINGLE), is_file(folder / SHARDED)
    if single and sharded:
        raise CheckpointError(folder, f"holds both {SINGLE} and {SHARDED}; remove the one that is not the model")
    if sharded:
        return _sharded(folder), folder / SHARDED
    if single:
        return read_index(folder / SINGLE), folder / SINGLE
    others = sorted(p.name for pattern in ("*.bin", "*.pth", "*.pt") for p in folder.glob(pattern))
    hint = f"; {others[0]} must be converted to safetensors first" if others else ""
    raise CheckpointError(folder, f"holds neither {SINGLE} nor {SHARDED}{hint}")


def _sharded(folder: Path) -> dict[str, TensorEntry]:
    index = folder / SHARDED
    weight_map = _json(index).section("weight_map")
    if weight_map is None or not all(isinstance(shard, str) for shard in weight_map.values.values()):
        raise CheckpointError(index, "lacks a weight_map of tensor names to shard files")
    shards: dict[str, dict[str, TensorEntry]] = {}
    for name in weight_map.values:
        shard = weight_map.text(name)
        if shard not in shards:
            shards[shard] = _shard(folder, shard)
        if name not in shards[shard]:
            raise CheckpointError(folder / shard, f"lacks tensor {name} that {SHARDED} places in it; {AGAIN}")
    entries: dict[str, TensorEntry] = {}
    for shard, held in shards.items():
        for name, entry in held.items():
            if weight_map.text(name, shard) != shard or name in entries:
                raise CheckpointError(folder / shard, f"holds tensor {name} that another shard holds too; {AGAIN}")
            # One that the index does not name is kept: the config says whether it may be there.
            entries[name] = entry
    return entries


def _shard(folder: Path, name: str) -> dict[str, TensorEntry]:
    if Path(name).name != name:
        raise CheckpointError(folder / SHARDED, f"names a shard outside its folder: {name[:80]!r}")
    if not is_file(folder / name):
        raise CheckpointError(folder / name, f"is missing; {SHARDED} names it: {AGAIN}")
    return read_index(folder / name)


def _json(file: Path) -> Fields:
    if not is_file(file):
        raise CheckpointError(file, "is missing, or is not a regular file")
    try:
        if file.stat().st_size > MAX_JSON_BYTES:
            raise CheckpointError(file, f"is larger than {MAX_JSON_BYTES >> 20} MiB, which no such file is")
        content = file.read_bytes()
        refuse_pointer(file, content)
        values = json.loads(content.decode("utf-8"))
    except OSError as error:
        raise CheckpointError(file, f"cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(file, f"is not valid JSON: {error}") from error
    if not isinstance(values, dict):
        raise CheckpointError(file, "is not a JSON object")
    return Fields(file, values)
