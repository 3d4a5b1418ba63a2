"""A model's config from GGUF metadata, and the canonical names of its tensors."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pagemill_replica.checkpoint.config import MAX_LAYERS, Family, GenerationDefaults, ModelConfig
from pagemill_replica.checkpoint.errors import AGAIN, CheckpointError
from pagemill_replica.checkpoint.fields import Fields, read_head_dim
from pagemill_replica.checkpoint.gguf_rope import parse_scaling
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

# Leading zeros and digits of other scripts would give one layer several names.
_LAYER = re.compile(r"blk\.(0|[1-9][0-9]{0,5})\.(\w+)\.(weight|bias)", re.ASCII)


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

    The file says by its tensors whether a llama has biases, whether there is a head and how many ids there are; what
    a family always has is called for, so that a file without it is refused. Frequency factors, numbers in a tensor,
    are not read here.
    """
    arch = fields.text("general.architecture")
    if arch not in ARCHITECTURES:
        supported = ", ".join(ARCHITECTURES)
        raise CheckpointError(fields.file, f"architecture {arch[:80]} is not supported; supported: {supported}")
    family = ARCHITECTURES[arch]
    if EMBEDDING not in shapes:
        raise CheckpointError(fields.file, f"lacks tensor token_embd.weight; {AGAIN}")
    own = _under(fields, f"{arch}.")
    ids = _special_ids(fields)
    heads = own.integer("attention.head_count")
    hidden = own.integer("embedding_length")
    layers = own.count("block_count", MAX_LAYERS)
    config = ModelConfig(
        family=family,
        vocab_size=shapes[EMBEDDING][0],
        hidden_size=hidden,
        layers=layers,
        heads=heads,
        kv_heads=_kv_heads(own, heads),
        head_dim=read_head_dim(own, "attention.key_length", hidden, heads),
        intermediate_size=own.integer("feed_forward_length"),
        rms_eps=own.number("attention.layer_norm_rms_epsilon"),
        rope_theta=own.number("rope.freq_base", 10000.0),
        rope_scaling=parse_scaling(own),
        max_context=own.integer("context_length"),
        tied_embeddings=HEAD not in shapes,
        attention_bias=family is Family.QWEN2 or layer_name(0, "self_attn.q_proj.bias") in shapes,
        output_bias=layer_name(0, "self_attn.o_proj.bias") in shapes,
        mlp_bias=layer_name(0, "mlp.gate_proj.bias") in shapes,
        qk_norm=family is Family.QWEN3,
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
    defaults = GenerationDefaults(
        temperature=fields.optional_number("general.sampling.temp"),
        top_k=fields.optional_integer("general.sampling.top_k"),
        top_p=fields.optional_number("general.sampling.top_p"),
        min_p=fields.optional_number("general.sampling.min_p"),
        repetition_penalty=fields.optional_number("general.sampling.penalty_repeat"),
        eos_token_ids=config.eos_token_ids,
    )
    problem = defaults.problem()
    if problem:
        raise CheckpointError(fields.file, f"general.sampling: {problem}")
    return defaults


def _under(fields: Fields, prefix: str) -> Fields:
    """The values whose keys begin with `prefix`, by the rest of their keys."""
    values = {key[len(prefix) :]: value for key, value in fields.values.items() if key.startswith(prefix)}
    return Fields(fields.file, values, prefix)


def _special_ids(fields: Fields) -> Fields:
    """Values of `tokenizer.ggml.*`; some writers say 2^32 - 1 for "none"."""
    ids = _under(fields, "tokenizer.ggml.")
    return Fields(ids.file, {key: value for key, value in ids.values.items() if value != 0xFFFFFFFF}, ids.label)


def _kv_heads(own: Fields, heads: int) -> int:
    counts = set(own.integers("attention.head_count_kv")) or {heads}
    if len(counts) > 1:
        raise CheckpointError(own.file, "kv heads that differ by layer are not supported")
    return counts.pop()


def _unsupported(own: Fields, config: ModelConfig) -> str | None:
    if own.integer("expert_count", 0):
        return "mixtures of experts are not supported"
    if own.integer("rope.dimension_count", config.head_dim) != config.head_dim:
        return f"a rotation of part of each head of {config.head_dim} is not supported"
    if own.integer("attention.value_length", config.head_dim) != config.head_dim:
        return "value heads of another size than key heads are not supported"
    return None
