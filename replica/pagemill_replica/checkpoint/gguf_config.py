"""A model's config from GGUF metadata, and the canonical names of its tensors."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pagemill_replica.checkpoint.config import Family, GenerationDefaults, ModelConfig
from pagemill_replica.checkpoint.errors import CheckpointError
from pagemill_replica.checkpoint.fields import Fields
from pagemill_replica.checkpoint.layout import EMBEDDING, FINAL_NORM, HEAD, layer_name

ARCHITECTURES = {"llama": Family.LLAMA, "mistral": Family.MISTRAL, "qwen2": Family.QWEN2, "qwen3": Family.QWEN3}
INTERLEAVED = ("llama", "mistral")
"""Architectures whose q and k rows the file orders for interleaved rotation."""

TOP_LEVEL = {"token_embd.weight": EMBEDDING, "output_norm.weight": FINAL_NORM, "output.weight": HEAD}
PARTS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
END_IDS = ("eos_token_id", "eot_token_id", "eom_token_id")
"""Metadata (after `tokenizer.ggml.`) that names ids which end a text or a turn."""

_LAYER = re.compile(r"blk\.(\d{1,6})\.(\w+)\.(weight|bias)")


def canonical_name(name: str) -> str | None:
    """`blk.3.attn_q.weight` as `model.layers.3.self_attn.q_proj.weight`; None for a tensor of no known role."""
    if name in TOP_LEVEL:
        return TOP_LEVEL[name]
    match = _LAYER.fullmatch(name)
    if match is None or match[2] not in PARTS:
        return None
    return layer_name(int(match[1]), f"{PARTS[match[2]]}.{match[3]}")


def parse_config(fields: Fields, shapes: Mapping[str, tuple[int, ...]]) -> ModelConfig:
    """The config from metadata and the canonical names and shapes of the file's tensors.

    The file says by its tensors whether it has biases, a head of its own and how many ids there are.
    """
    arch = fields.text("general.architecture")
    if arch not in ARCHITECTURES:
        supported = ", ".join(ARCHITECTURES)
        raise CheckpointError(fields.file, f"architecture {arch[:80]} is not supported; supported: {supported}")
    own = Fields(fields.file, {k[len(arch) + 1 :]: v for k, v in fields.values.items() if k.startswith(f"{arch}.")})
    ids = _special_ids(fields)
    heads = own.integer("attention.head_count")
    hidden = own.integer("embedding_length")
    layers = own.integer("block_count")
    config = ModelConfig(
        family=ARCHITECTURES[arch],
        vocab_size=shapes[EMBEDDING][0] if shapes.get(EMBEDDING) else own.integer("vocab_size"),
        hidden_size=hidden,
        layers=layers,
        heads=heads,
        kv_heads=_kv_heads(own, heads),
        head_dim=own.integer("attention.key_length", hidden // max(heads, 1)),
        intermediate_size=own.integer("feed_forward_length"),
        rms_eps=own.number("attention.layer_norm_rms_epsilon"),
        rope_theta=own.number("rope.freq_base", 10000.0),
        max_context=own.integer("context_length"),
        tied_embeddings=HEAD not in shapes,
        attention_bias=layer_name(0, "self_attn.q_proj.bias") in shapes,
        output_bias=layer_name(0, "self_attn.o_proj.bias") in shapes,
        mlp_bias=layer_name(0, "mlp.gate_proj.bias") in shapes,
        qk_norm=layer_name(0, "self_attn.q_norm.weight") in shapes,
        layer_windows=(own.integer("attention.sliding_window", 0),) * layers,
        bos_token_id=ids.optional_integer("bos_token_id"),
        eos_token_ids=tuple(dict.fromkeys(i for key in END_IDS for i in ids.integers(key))),
        pad_token_id=ids.optional_integer("padding_token_id"),
    )
    problem = config.problem() or _unsupported(own, config)
    if problem:
        raise CheckpointError(fields.file, problem)
    return config


def parse_generation(fields: Fields, config: ModelConfig) -> GenerationDefaults:
    """Sampling advice of `general.sampling.*`, where a file has it, and every end-of-text id."""
    return GenerationDefaults(
        temperature=fields.optional_number("general.sampling.temp"),
        top_k=fields.optional_integer("general.sampling.top_k"),
        top_p=fields.optional_number("general.sampling.top_p"),
        min_p=fields.optional_number("general.sampling.min_p"),
        repetition_penalty=fields.optional_number("general.sampling.penalty_repeat"),
        eos_token_ids=config.eos_token_ids,
    )


def _special_ids(fields: Fields) -> Fields:
    """Values of `tokenizer.ggml.*`; some writers say 2^32 - 1 for "none"."""
    prefix = "tokenizer.ggml."
    values = {k[len(prefix) :]: v for k, v in fields.values.items() if k.startswith(prefix)}
    return Fields(fields.file, {k: v for k, v in values.items() if v != 0xFFFFFFFF})


def _kv_heads(own: Fields, heads: int) -> int:
    counts = set(own.integers("attention.head_count_kv")) or {heads}
    if len(counts) > 1:
        raise CheckpointError(own.file, "kv heads that differ by layer are not supported")
    return counts.pop()


def _unsupported(own: Fields, config: ModelConfig) -> str | None:
    if own.integer("expert_count", 0):
        return "mixtures of experts are not supported"
    scaling = own.text("rope.scaling.type", "none")
    if scaling not in ("none", ""):
        return f"rope scaling of type {scaling} is not supported; supported: none"
    if own.number("rope.scale_linear", 1.0) != 1.0:
        return "rope scaling of type linear is not supported; supported: none"
    if own.integer("rope.dimension_count", config.head_dim) != config.head_dim:
        return f"a rotation of part of each head of {config.head_dim} is not supported"
    if own.integer("attention.value_length", config.head_dim) != config.head_dim:
        return "value heads of another size than key heads are not supported"
    return None
