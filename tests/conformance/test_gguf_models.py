"""Tiny models written as GGUF files by the `gguf` package compute what transformers computes of the same weights."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from pagemill_replica.checkpoint import CheckpointError, open_checkpoint
from pagemill_replica.checkpoint.rope_scaling import FrequencyFactors
from pagemill_replica.engine.params import Sampling
from pagemill_replica.engine.plan import ScheduledSequence, StepPlan
from pagemill_replica.runner import CpuRunner
from support.checkpoints import gguf_name

VOCAB = 96
SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
SCALED = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 28,
}
"""In a head of 16 it keeps one pair, blends one and slows the rest; a prompt passes the original context."""
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.5}
MODELS: dict[str, Callable[[], PreTrainedModel]] = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE, tie_word_embeddings=False)),
    "llama tied": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE, tie_word_embeddings=True)),
    "llama with biases": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE, attention_bias=True)),
    "llama scaled by factors": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE, rope_parameters=SCALED)),
    "llama scaled linearly": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE, rope_parameters=LINEAR)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SHAPE)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SHAPE, head_dim=32)),
}
TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1")


def _interleave(values: np.ndarray, heads: int) -> np.ndarray:
    """Rows of each head from half-split to interleaved order, as llama.cpp's converter stores them."""
    halves = values.reshape(heads, 2, len(values) // heads // 2, -1)
    return np.ascontiguousarray(np.stack((halves[:, 0], halves[:, 1]), axis=2)).reshape(values.shape)


def _frequency_factors(rope: dict[str, float], head_dim: int) -> np.ndarray:
    """What llama.cpp's converter works out for llama3 scaling: how many times slower each pair turns.

    Worked out in float64 from the definition in wavelengths: not by transformers, whose result it must reproduce.
    """
    wavelengths = 2 * np.pi * rope["rope_theta"] ** (np.arange(0, head_dim, 2) / head_dim)
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    kept = np.clip((rope["original_max_position_embeddings"] / wavelengths - low) / (high - low), 0, 1)
    return (1 / ((1 - kept) / rope["factor"] + kept)).astype(np.float32)


def _add_scaling(writer: gguf.GGUFWriter, rope: dict[str, float], head_dim: int) -> None:
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", _frequency_factors(rope, head_dim))


def _write(file: Path, model: PreTrainedModel, name: str, type_name: str) -> None:
    """Stores the model's matrices as `type_name` and leaves in the model what a reader gets back."""
    arch, config = name.split()[0], model.config
    writer = gguf.GGUFWriter(file, arch)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    if arch == "qwen3":
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    _add_scaling(writer, config.rope_parameters, model.model.layers[0].self_attn.head_dim)
    writer.add_token_list([f"t{i}" for i in range(VOCAB)])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_eot_token_id(3)
    for parameter_name, parameter in model.named_parameters():
        matrix = parameter.dim() == 2
        kind = gguf.GGMLQuantizationType[type_name if matrix else "F32"]
        values = parameter.detach().numpy()
        heads = {"q": config.num_attention_heads, "k": config.num_key_value_heads}
        role = re.search(r"self_attn\.([qk])_proj", parameter_name)
        stored = _interleave(values, heads[role[1]]) if role and arch == "llama" else values
        writer.add_tensor(gguf_name(parameter_name), gguf.quants.quantize(stored, kind), raw_dtype=kind)
        if matrix:
            restored = gguf.quants.dequantize(gguf.quants.quantize(values, kind), kind)
            parameter.copy_(torch.tensor(restored.astype(np.float32)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@torch.no_grad()
def _model_and_file(folder: Path, name: str, type_name: str) -> tuple[PreTrainedModel, Path]:
    torch.manual_seed(len(name))
    model = MODELS[name]().eval()
    for parameter_name, parameter in model.named_parameters():
        spread = torch.randn_like(parameter)
        parameter.copy_(1 + 0.3 * spread if "norm" in parameter_name else 0.15 * spread)
    file = folder / "model.gguf"
    _write(file, model, name, type_name)
    return model, file


@pytest.mark.parametrize(
    ("name", "type_name"), [("llama", t) for t in TYPES] + [(n, "Q8_0") for n in MODELS if n != "llama"]
)
def test_logits_equal_those_of_transformers(
    name: str, type_name: str, tmp_path: Path, open_runner: Callable[..., CpuRunner]
) -> None:
    model, file = _model_and_file(tmp_path, name, type_name)
    generator = torch.Generator().manual_seed(11)
    prompts = [torch.randint(0, VOCAB, (n,), generator=generator).tolist() for n in (1, 16, 33)]
    runner = open_runner(file)
    plan = [
        ScheduledSequence(i, ids, 0, [3 * i, 3 * i + 1, 3 * i + 2], True, Sampling(temperature=0.0), ids, [])
        for i, ids in enumerate(prompts)
    ]
    with torch.inference_mode():
        theirs = torch.stack([model(torch.tensor([ids]), use_cache=False).logits[0, -1] for ids in prompts])
    torch.testing.assert_close(runner.logits(StepPlan(plan)), theirs, atol=3e-5, rtol=3e-5)


def test_factors_slow_pairs_as_transformers_slows_them(tmp_path: Path) -> None:
    """One kept, one blended, six slowed by 8."""
    model, file = _model_and_file(tmp_path, "llama scaled by factors", "F32")
    scaling = open_checkpoint(file).config.rope_scaling
    assert isinstance(scaling, FrequencyFactors)
    plain = LlamaRotaryEmbedding(LlamaConfig(**SHAPE, rope_parameters={"rope_type": "default", "rope_theta": 500.0}))
    expected = plain.inv_freq / model.model.rotary_emb.inv_freq
    torch.testing.assert_close(torch.tensor(scaling.factors), expected, rtol=1e-6, atol=0)
    assert [factor == 1 for factor in scaling.factors] == [True] + [False] * 7
    assert [factor == 8 for factor in scaling.factors] == [False] * 2 + [True] * 6


def test_the_file_says_what_the_model_is(tmp_path: Path) -> None:
    _, file = _model_and_file(tmp_path, "qwen3", "BF16")
    checkpoint = open_checkpoint(file)
    config = checkpoint.config
    assert (config.vocab_size, config.head_dim, config.qk_norm) == (VOCAB, 32, True)
    assert (config.bos_token_id, checkpoint.generation.eos_token_ids) == (1, (2, 3))
    assert not config.tied_embeddings
    assert checkpoint.weight_format == "gguf/BF16+F32"
    assert checkpoint.metadata["tokenizer.ggml.tokens"] == [f"t{i}" for i in range(VOCAB)]


def test_an_unsupported_type_names_tensor_and_type(tmp_path: Path) -> None:
    with pytest.raises(
        CheckpointError, match=r"model\.gguf: tensor token_embd\.weight has type Q5_0; supported are F32"
    ):
        open_checkpoint(_model_and_file(tmp_path, "llama", "Q5_0")[1])
