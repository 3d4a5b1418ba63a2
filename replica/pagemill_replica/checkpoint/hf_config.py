"""config.json and generation_config.json of a Hugging Face folder."""

from __future__ import annotations

from dataclasses import dataclass

from pagemill_replica.checkpoint.config import (
    MAX_LAYERS,
    SUPPORTED_FAMILIES,
    Family,
    GenerationDefaults,
    ModelConfig,
)
from pagemill_replica.checkpoint.errors import CheckpointError
from pagemill_replica.checkpoint.fields import Fields, read_head_dim
from pagemill_replica.checkpoint.hf_rope import parse_rope

MODEL_TYPES = {"llama": Family.LLAMA, "mistral": Family.MISTRAL, "qwen2": Family.QWEN2, "qwen3": Family.QWEN3}

LAYER_TYPES = ("full_attention", "sliding_attention")


@dataclass(frozen=True, slots=True)
class _FamilyDefaults:
    """What an absent key means; transformers leaves keys at these values out of older files."""

    kv_heads: int | None
    head_dim: int | None
    sliding_window: int


DEFAULTS = {
    Family.LLAMA: _FamilyDefaults(kv_heads=None, head_dim=None, sliding_window=0),
    Family.MISTRAL: _FamilyDefaults(kv_heads=8, head_dim=None, sliding_window=4096),
    Family.QWEN2: _FamilyDefaults(kv_heads=32, head_dim=None, sliding_window=4096),
    Family.QWEN3: _FamilyDefaults(kv_heads=32, head_dim=128, sliding_window=4096),
}


def parse_config(fields: Fields) -> ModelConfig:
    """The model's config from config.json; CheckpointError where it asks for what the decoder does not compute."""
    family = _family(fields)
    _check_supported(fields)
    defaults = DEFAULTS[family]
    heads = fields.integer("num_attention_heads")
    hidden = fields.integer("hidden_size")
    layers = fields.count("num_hidden_layers", MAX_LAYERS)
    bias = fields.flag("attention_bias", default=False)
    theta, scaling = parse_rope(fields)
    config = ModelConfig(
        family=family,
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden,
        layers=layers,
        heads=heads,
        kv_heads=_kv_heads(fields, heads, defaults),
        head_dim=read_head_dim(fields, "head_dim", hidden, heads, defaults.head_dim),
        intermediate_size=fields.integer("intermediate_size"),
        rms_eps=fields.number("rms_norm_eps", 1e-6),
        rope_theta=theta,
        rope_scaling=scaling,
        max_context=fields.integer("max_position_embeddings"),
        tied_embeddings=fields.flag("tie_word_embeddings", default=False),
        attention_bias=bias or family is Family.QWEN2,
        output_bias=bias and family is not Family.QWEN2,
        mlp_bias=fields.flag("mlp_bias", default=False),
        qk_norm=family is Family.QWEN3,
        layer_windows=_layer_windows(fields, family, layers),
        bos_token_id=fields.optional_integer("bos_token_id"),
        eos_token_ids=fields.integers("eos_token_id"),
        pad_token_id=_pad_token_id(fields),
    )
    problem = config.problem()
    if problem:
        raise CheckpointError(fields.file, problem)
    return config


def parse_generation(fields: Fields | None, config: ModelConfig) -> GenerationDefaults:
    """Sampling advice of generation_config.json (None: there is none) and every end-of-text id of both files."""
    if fields is None:
        return GenerationDefaults(eos_token_ids=config.eos_token_ids)
    eos = tuple(dict.fromkeys((*fields.integers("eos_token_id"), *config.eos_token_ids)))
    if any(not 0 <= i < config.vocab_size for i in eos):
        raise CheckpointError(fields.file, f"eos_token_id {list(eos)} leaves the vocabulary of {config.vocab_size}")
    defaults = GenerationDefaults(
        temperature=fields.optional_number("temperature"),
        top_k=fields.optional_integer("top_k"),
        top_p=fields.optional_number("top_p"),
        min_p=fields.optional_number("min_p"),
        repetition_penalty=fields.optional_number("repetition_penalty"),
        eos_token_ids=eos,
    )
    problem = defaults.problem()
    if problem:
        raise CheckpointError(fields.file, problem)
    return defaults


def _family(fields: Fields) -> Family:
    names = fields.values.get("architectures")
    if names is None:
        model_type = fields.text("model_type")
        if model_type in MODEL_TYPES:
            return MODEL_TYPES[model_type]
        raise CheckpointError(
            fields.file, f"model_type {model_type!r} is not supported; supported: {SUPPORTED_FAMILIES}"
        )
    if isinstance(names, list) and len(names) == 1 and names[0] in list(Family):
        return Family(names[0])
    shown = ", ".join(map(str, names)) if isinstance(names, list) else str(names)
    raise CheckpointError(fields.file, f"architecture {shown[:80]} is not supported; supported: {SUPPORTED_FAMILIES}")


def _check_supported(fields: Fields) -> None:
    quantisation = fields.section("quantization_config")
    if quantisation is not None:
        method = quantisation.text("quant_method", "of an unnamed kind")
        raise CheckpointError(fields.file, f"quantised weights ({method}) are not supported in this format")
    activation = fields.text("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise CheckpointError(fields.file, f"activation {activation} is not supported; supported: silu")


def _kv_heads(fields: Fields, heads: int, defaults: _FamilyDefaults) -> int:
    # An explicit null means one kv head a head; an absent key means the family's default.
    if "num_key_value_heads" in fields.values or defaults.kv_heads is None:
        return fields.integer("num_key_value_heads", heads)
    return defaults.kv_heads


def _layer_windows(fields: Fields, family: Family, layers: int) -> tuple[int, ...]:
    if family is Family.LLAMA:
        return (0,) * layers
    # As with kv heads: an explicit null switches windows off, an absent key means the family's default.
    given = "sliding_window" in fields.values
    window = fields.integer("sliding_window", 0 if given else DEFAULTS[family].sliding_window)
    if family is Family.MISTRAL:
        return (window,) * layers
    if not fields.flag("use_sliding_window", default=False):
        return (0,) * layers
    kinds = fields.values.get("layer_types")
    if kinds is None:
        first = fields.integer("max_window_layers", 28)
        return tuple(window if layer >= first else 0 for layer in range(layers))
    if not isinstance(kinds, list) or len(kinds) != layers or any(kind not in LAYER_TYPES for kind in kinds):
        raise CheckpointError(
            fields.file, f"layer_types must say full_attention or sliding_attention for {layers} layers"
        )
    return tuple(window if kind == "sliding_attention" else 0 for kind in kinds)


def _pad_token_id(fields: Fields) -> int | None:
    # Some published configs say -1 for "none".
    pad = fields.optional_integer("pad_token_id")
    return None if pad is None or pad < 0 else pad
