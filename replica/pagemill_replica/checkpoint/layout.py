"""Which tensors a model of a given config consists of, by canonical (Hugging Face) name and shape."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pagemill_replica.checkpoint.config import ModelConfig
from pagemill_replica.checkpoint.errors import CheckpointError
from pagemill_replica.checkpoint.tensors import TensorEntry

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
HEAD = "lm_head.weight"


def layer_name(layer: int, part: str) -> str:
    """Canonical name of a layer's tensor, its part being such as `mlp.up_proj.weight`."""
    return f"model.layers.{layer}.{part}"


def expected_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name to shape ([out, in] for projections) of every tensor that the decoder needs."""
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (config.vocab_size, config.hidden_size)}
    layer = _layer_tensors(config)
    for index in range(config.layers):
        shapes.update({layer_name(index, part): shape for part, shape in layer.items()})
    shapes[FINAL_NORM] = (config.hidden_size,)
    if not config.tied_embeddings:
        shapes[HEAD] = (config.vocab_size, config.hidden_size)
    return shapes


def _layer_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    hidden, inter = config.hidden_size, config.intermediate_size
    projections = {
        "self_attn.q_proj": (config.query_size, hidden, config.attention_bias),
        "self_attn.k_proj": (config.kv_size, hidden, config.attention_bias),
        "self_attn.v_proj": (config.kv_size, hidden, config.attention_bias),
        "self_attn.o_proj": (hidden, config.query_size, config.output_bias),
        "mlp.gate_proj": (inter, hidden, config.mlp_bias),
        "mlp.up_proj": (inter, hidden, config.mlp_bias),
        "mlp.down_proj": (hidden, inter, config.mlp_bias),
    }
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
    }
    for name, (rows, columns, bias) in projections.items():
        shapes[f"{name}.weight"] = (rows, columns)
        if bias:
            shapes[f"{name}.bias"] = (rows,)
    if config.qk_norm:
        shapes["self_attn.q_norm.weight"] = (config.head_dim,)
        shapes["self_attn.k_norm.weight"] = (config.head_dim,)
    return shapes


def check_tensors(entries: Mapping[str, TensorEntry], config: ModelConfig, source: Path) -> dict[str, TensorEntry]:
    """The entries that the decoder needs, checked to be all there, in the right shape and alone.

    A tensor that the config does not account for (a bias, an adapter) would be silently left out of the computation,
    so it is an error; only rotation tables, which follow from the config, and the head of a tied model are ignored.
    """
    needed = expected_tensors(config)
    missing = [name for name in needed if name not in entries]
    if missing:
        raise CheckpointError(source, f"lacks {_list(missing)} that its config calls for")
    extra = [name for name in entries if name not in needed and not _follows_from_config(name, config)]
    if extra:
        raise CheckpointError(
            source, f"holds {_list(extra)} that a {config.family.value} of this config has no use for"
        )
    for name, shape in needed.items():
        if entries[name].shape != shape:
            found = entries[name]
            raise CheckpointError(found.file, f"tensor {name} has shape {list(found.shape)}; config says {list(shape)}")
    return {name: entries[name] for name in needed}


def _follows_from_config(name: str, config: ModelConfig) -> bool:
    return name.endswith("rotary_emb.inv_freq") or (name == HEAD and config.tied_embeddings)


def _list(names: list[str]) -> str:
    shown = ", ".join(names[:3])
    return (
        f"tensor {shown}" if len(names) == 1 else f"{len(names)} tensors ({shown}{', ...' if len(names) > 3 else ''})"
    )
