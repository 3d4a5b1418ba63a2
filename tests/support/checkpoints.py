"""Tiny checkpoints: folders and GGUF files, whole or damaged on purpose, byte by byte."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save

from pagemill_replica.checkpoint.fields import Fields
from pagemill_replica.checkpoint.hf_config import parse_config
from pagemill_replica.checkpoint.layout import expected_tensors

Arrays = dict[str, npt.NDArray[np.float32]]

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 48,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
"""A config.json: head size 8."""

GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def llama(**changes: Any) -> dict[str, Any]:
    """LLAMA with keys changed; one of None is null, `...` removes it."""
    return {key: value for key, value in {**LLAMA, **changes}.items() if value is not ...}


def random_weights(config: Mapping[str, Any], seed: int = 0) -> Arrays:
    """Every tensor that a config calls for, float32, norms and biases drawn too."""
    generator = np.random.default_rng(seed)
    shapes = expected_tensors(parse_config(Fields(Path("config.json"), config)))
    return {name: generator.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}


def write_json(file: Path, value: object) -> Path:
    file.write_text(json.dumps(value), encoding="utf-8")
    return file


def write_folder(folder: Path, config: Mapping[str, Any] = LLAMA, weights: Mapping[str, Any] | None = None) -> Path:
    """A Hugging Face folder with one weight file."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", config)
    (folder / "model.safetensors").write_bytes(save(dict(random_weights(config) if weights is None else weights)))
    return folder


def write_shards(folder: Path, weights: Mapping[str, Any], config: Mapping[str, Any] = LLAMA) -> dict[str, str]:
    """A folder with two shards and their index; the index's weight_map, to write again when changed."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", config)
    names, weight_map = list(weights), {}
    for number, part in enumerate((names[: len(names) // 2], names[len(names) // 2 :]), start=1):
        shard = f"model-{number:05}-of-00002.safetensors"
        (folder / shard).write_bytes(save({name: weights[name] for name in part}))
        weight_map.update(dict.fromkeys(part, shard))
    write_json(folder / "model.safetensors.index.json", {"weight_map": weight_map})
    return weight_map


def raw_safetensors(header: object, data: bytes = b"", *, length: int | None = None) -> bytes:
    """A safetensors file of any header (bytes, or what JSON writes) and any claimed length."""
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(encoded) if length is None else length).to_bytes(8, "little") + encoded + data


def u32(value: int) -> tuple[int, bytes]:
    return 4, struct.pack("<I", value)


def f32(value: float) -> tuple[int, bytes]:
    return 6, struct.pack("<f", value)


def string(value: str | bytes) -> tuple[int, bytes]:
    return 8, _string(value)


def array(kind: int, count: int, body: bytes) -> tuple[int, bytes]:
    return 9, struct.pack("<IQ", kind, count) + body


def _string(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


@dataclass
class RawTensor:
    """A tensor as the file describes it, dimensions in the file's order, and the bytes it gets."""

    dimensions: tuple[int, ...]
    data: bytes
    kind: int = 0
    offset: int | None = None
    """None: the next aligned byte."""


@dataclass
class RawGguf:
    """A GGUF file of which every part can be wrong."""

    metadata: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    tensors: dict[str, RawTensor] = field(default_factory=dict)
    magic: bytes = b"GGUF"
    version: int = 3
    tensor_count: int | None = None
    pair_count: int | None = None
    alignment: int = 32
    extra: bytes = b""
    """Raw pairs after the metadata, not counted."""

    def encode(self) -> bytes:
        pairs = b"".join(_string(key) + struct.pack("<I", kind) + body for key, (kind, body) in self.metadata.items())
        infos, data = b"", b""
        for name, tensor in self.tensors.items():
            at = len(data) if tensor.offset is None else tensor.offset
            infos += _string(name) + struct.pack("<I", len(tensor.dimensions))
            infos += b"".join(struct.pack("<Q", size) for size in tensor.dimensions)
            infos += struct.pack("<IQ", tensor.kind, at)
            data += self._padded(tensor.data)
        counts = struct.pack(
            "<QQ",
            len(self.tensors) if self.tensor_count is None else self.tensor_count,
            len(self.metadata) if self.pair_count is None else self.pair_count,
        )
        return self._padded(self.magic + struct.pack("<I", self.version) + counts + pairs + self.extra + infos) + data

    def write(self, file: Path) -> Path:
        file.write_bytes(self.encode())
        return file

    def _padded(self, part: bytes) -> bytes:
        return part + bytes(-len(part) % self.alignment)


def gguf_name(name: str) -> str:
    """A canonical tensor name as llama.cpp writes it."""
    stem, _, kind = name.rpartition(".")
    layer = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", stem)
    return f"blk.{layer[1]}.{GGUF_NAMES[layer[2]]}.{kind}" if layer else f"{GGUF_NAMES[stem]}.{kind}"


def raw_gguf(config: Mapping[str, Any] = LLAMA, arch: str = "llama", seed: int = 0) -> RawGguf:
    """A sound file of random float32 weights, in the order of `random_weights` and with q and k rows as they come."""
    metadata = {
        "general.architecture": string(arch),
        f"{arch}.context_length": u32(config["max_position_embeddings"]),
        f"{arch}.embedding_length": u32(config["hidden_size"]),
        f"{arch}.block_count": u32(config["num_hidden_layers"]),
        f"{arch}.feed_forward_length": u32(config["intermediate_size"]),
        f"{arch}.attention.head_count": u32(config["num_attention_heads"]),
        f"{arch}.attention.head_count_kv": u32(config["num_key_value_heads"]),
        f"{arch}.attention.layer_norm_rms_epsilon": f32(config["rms_norm_eps"]),
        "tokenizer.ggml.bos_token_id": u32(1),
        "tokenizer.ggml.eos_token_id": u32(2),
    }
    if "head_dim" in config:
        metadata[f"{arch}.attention.key_length"] = u32(config["head_dim"])
    tensors = {
        gguf_name(name): RawTensor(tuple(reversed(values.shape)), values.tobytes())
        for name, values in random_weights(config, seed).items()
    }
    return RawGguf(metadata, tensors)
