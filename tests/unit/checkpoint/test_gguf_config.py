"""What GGUF metadata and tensor names mean, and one clear error for what cannot be served."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from pagemill_replica.checkpoint import Checkpoint, CheckpointError, Family, open_checkpoint
from pagemill_replica.checkpoint.gguf_config import canonical_name
from support.checkpoints import RawGguf, array, f32, llama, raw_gguf, string, u32

I32 = 5
QWEN2 = llama(architectures=["Qwen2ForCausalLM"])
QWEN3 = llama(architectures=["Qwen3ForCausalLM"], head_dim=8)


def opened(tmp_path: Path, raw: RawGguf) -> Checkpoint:
    return open_checkpoint(raw.write(tmp_path / "model.gguf"))


def numbers(*values: int) -> tuple[int, bytes]:
    return array(I32, len(values), struct.pack(f"<{len(values)}i", *values))


def test_metadata_becomes_the_config(tmp_path: Path) -> None:
    raw = raw_gguf()
    raw.metadata |= {
        "llama.rope.freq_base": f32(5e5),
        "llama.vocab_size": u32(999),
        "tokenizer.ggml.eot_token_id": u32(3),
        "tokenizer.ggml.eom_token_id": u32(2),
        "tokenizer.ggml.padding_token_id": u32(4),
        "general.sampling.temp": f32(0.5),
        "general.sampling.top_k": u32(20),
    }
    checkpoint = opened(tmp_path, raw)
    config = checkpoint.config
    assert (config.family, config.hidden_size, config.layers) == (Family.LLAMA, 32, 2)
    assert (config.heads, config.kv_heads, config.head_dim, config.intermediate_size) == (4, 2, 8, 64)
    assert (config.rope_theta, config.max_context) == (5e5, 128)
    assert config.rms_eps == pytest.approx(1e-5)
    # The rows of the embedding count, not what metadata says of them.
    assert config.vocab_size == 48
    assert (config.bos_token_id, config.eos_token_ids, config.pad_token_id) == (1, (2, 3), 4)
    assert (checkpoint.generation.temperature, checkpoint.generation.top_k) == (0.5, 20)
    assert checkpoint.generation.eos_token_ids == (2, 3)


def test_absent_keys_have_their_defaults(tmp_path: Path) -> None:
    raw = raw_gguf(llama(num_key_value_heads=4))
    del raw.metadata["llama.attention.head_count_kv"]
    del raw.metadata["tokenizer.ggml.bos_token_id"]
    config = opened(tmp_path, raw).config
    assert (config.kv_heads, config.rope_theta, config.bos_token_id, config.sliding_window) == (4, 10000.0, None, 0)


def test_an_id_of_all_ones_means_none(tmp_path: Path) -> None:
    raw = raw_gguf()
    raw.metadata["tokenizer.ggml.padding_token_id"] = u32(0xFFFFFFFF)
    assert opened(tmp_path, raw).config.pad_token_id is None


def test_kv_heads_may_be_listed_by_layer_where_all_are_equal(tmp_path: Path) -> None:
    raw = raw_gguf()
    raw.metadata["llama.attention.head_count_kv"] = numbers(2, 2)
    assert opened(tmp_path, raw).config.kv_heads == 2


def test_a_window_holds_for_all_layers(tmp_path: Path) -> None:
    raw = raw_gguf()
    raw.metadata["llama.attention.sliding_window"] = u32(16)
    assert opened(tmp_path, raw).config.layer_windows == (16, 16)


def test_the_head_is_the_embedding_where_the_file_has_none(tmp_path: Path) -> None:
    raw = raw_gguf()
    assert not opened(tmp_path, raw).config.tied_embeddings
    del raw.tensors["output.weight"]
    checkpoint = opened(tmp_path, raw)
    assert checkpoint.config.tied_embeddings
    assert "lm_head.weight" not in checkpoint.entries


def test_q_and_k_rows_of_llama_alone_are_interleaved(tmp_path: Path) -> None:
    heads = {name: entry.interleaved_heads for name, entry in opened(tmp_path, raw_gguf()).entries.items()}
    for name, count in heads.items():
        assert count == (4 if "q_proj" in name else 2 if "k_proj" in name else 0)
    assert not any(e.interleaved_heads for e in opened(tmp_path, raw_gguf(QWEN2, "qwen2")).entries.values())


def test_families_have_their_biases_and_norms(tmp_path: Path) -> None:
    qwen2 = opened(tmp_path, raw_gguf(QWEN2, "qwen2")).config
    assert (qwen2.attention_bias, qwen2.output_bias, qwen2.qk_norm) == (True, False, False)
    qwen3 = opened(tmp_path, raw_gguf(QWEN3, "qwen3")).config
    assert (qwen3.attention_bias, qwen3.output_bias, qwen3.qk_norm) == (False, False, True)
    biased = opened(tmp_path, raw_gguf(llama(attention_bias=True, mlp_bias=True))).config
    assert (biased.attention_bias, biased.output_bias, biased.mlp_bias, biased.qk_norm) == (True, True, True, False)


@pytest.mark.parametrize(
    ("config", "arch", "parts", "first"),
    [
        (QWEN2, "qwen2", (".bias",), r"self_attn\.q_proj\.bias"),
        (QWEN3, "qwen3", ("attn_q_norm", "attn_k_norm"), r"self_attn\.q_norm\.weight"),
    ],
)
def test_a_family_without_its_biases_or_norms_is_refused(
    config: dict[str, Any], arch: str, parts: tuple[str, ...], first: str, tmp_path: Path
) -> None:
    """Computed without them, every answer would be wrong and none would fail."""
    raw = raw_gguf(config, arch)
    opened(tmp_path, raw)
    raw.tensors = {name: t for name, t in raw.tensors.items() if not any(part in name for part in parts)}
    with pytest.raises(CheckpointError, match=rf"lacks \d tensors \(model\.layers\.0\.{first}"):
        opened(tmp_path, raw)


def test_norms_of_heads_in_a_llama_file_are_refused(tmp_path: Path) -> None:
    raw = raw_gguf()
    raw.tensors |= {n: t for n, t in raw_gguf(QWEN3, "qwen3").tensors.items() if "q_norm" in n or "k_norm" in n}
    with pytest.raises(CheckpointError, match=r"holds 4 tensors \(model\.layers\.0\.self_attn\.q_norm\.weight"):
        opened(tmp_path, raw)


REFUSED: list[tuple[dict[str, tuple[int, bytes] | None], str]] = [
    ({"general.architecture": None}, r"lacks general.architecture"),
    ({"general.architecture": string("gpt2")}, r"architecture gpt2 is not supported; supported: llama, mistral, qwen2"),
    ({"general.architecture": u32(3)}, r"general.architecture is '3'; it must be a string"),
    ({"llama.attention.head_count": None}, r"lacks llama.attention.head_count"),
    ({"llama.block_count": None}, r"lacks llama.block_count"),
    ({"llama.block_count": u32(0xFFFFFFFF)}, r"llama.block_count is '4294967295'; it must be between 1 and 1024"),
    ({"llama.context_length": u32(0xFFFFFFFF)}, r"max_context is 4294967295; it must be at most"),
    ({"llama.attention.head_count": u32(0)}, r"hidden size of 32 cannot be shared by 0 heads"),
    ({"llama.attention.head_count": u32(5)}, r"cannot be shared by 5 heads, and attention.key_length is not given"),
    ({"llama.attention.head_count": numbers(4, 4)}, r"llama.attention.head_count is .* it must be a whole number"),
    ({"llama.attention.head_count_kv": u32(3)}, r"4 heads cannot share 3 kv heads evenly"),
    ({"llama.attention.head_count_kv": numbers(2, 1)}, r"kv heads that differ by layer are not supported"),
    ({"llama.attention.layer_norm_rms_epsilon": f32(float("nan"))}, r"epsilon is 'nan'; it must be a finite number"),
    ({"llama.attention.sliding_window": (I32, struct.pack("<i", -1))}, r"sliding window is -1; it must be between 0"),
    ({"llama.rope.freq_base": f32(0.0)}, r"rope theta is 0.0; it must be finite and above 1"),
    ({"llama.rope.dimension_count": u32(4)}, r"a rotation of part of each head of 8 is not supported"),
    ({"llama.attention.value_length": u32(16)}, r"value heads of another size than key heads are not supported"),
    ({"llama.expert_count": u32(8)}, r"mixtures of experts are not supported"),
    ({"tokenizer.ggml.eos_token_id": u32(48)}, r"special token ids \[1, 48\] must lie in the vocabulary of 48"),
    ({"general.sampling.temp": f32(-1.0)}, r"general.sampling: temperature is -1.0; it must not be negative"),
    ({"general.sampling.top_p": f32(2.0)}, r"general.sampling: top_p is 2.0; it must be above 0 and at most 1"),
]


@pytest.mark.parametrize(("changes", "reason"), REFUSED)
def test_what_cannot_be_served_is_named(
    changes: dict[str, tuple[int, bytes] | None], reason: str, tmp_path: Path
) -> None:
    raw = raw_gguf()
    for key, value in changes.items():
        raw.metadata.pop(key, None)
        if value is not None:
            raw.metadata[key] = value
    with pytest.raises(CheckpointError, match=reason):
        opened(tmp_path, raw)


@pytest.mark.parametrize(
    "changes",
    [
        {"llama.rope.dimension_count": u32(8), "llama.expert_count": u32(0)},
    ],
)
def test_keys_that_change_nothing_are_accepted(changes: dict[str, tuple[int, bytes]], tmp_path: Path) -> None:
    raw = raw_gguf()
    raw.metadata |= changes
    assert opened(tmp_path, raw).config.layers == 2


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        ("token_embd.weight", "model.embed_tokens.weight"),
        ("output.weight", "lm_head.weight"),
        ("blk.0.attn_q.weight", "model.layers.0.self_attn.q_proj.weight"),
        ("blk.12.attn_q.bias", "model.layers.12.self_attn.q_proj.bias"),
        ("blk.00.attn_q.weight", None),
        ("blk.1234567.attn_q.weight", None),
        ("blk.-1.attn_q.weight", None),
        ("blk.0.attn_q.scales", None),
        ("blk.0.unheard.weight", None),
        ("blk.0.attn_q.weight\n", None),
    ],
)
def test_names_of_tensors(name: str, canonical: str | None) -> None:
    assert canonical_name(name) == canonical
