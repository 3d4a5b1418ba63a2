"""Tiny random models of every family compute what transformers computes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from pagemill_replica.checkpoint import open_checkpoint
from pagemill_replica.runner import CpuRunner
from support.logits import last_logits

VOCAB = 199
SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
}
LLAMA3 = {"num_key_value_heads": 2, "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}}
SCALED = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
"""In a head of 16 it keeps one pair, blends two and slows the rest; some prompts pass the original context."""
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.5}

MODELS: dict[str, Callable[[], PreTrainedModel]] = {
    "llama2": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE)),
    "llama3": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE, **LLAMA3, rms_norm_eps=1e-5)),
    "llama31_scaled": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE, num_key_value_heads=2, rope_parameters=SCALED)),
    "llama_linear": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE, num_key_value_heads=2, rope_parameters=LINEAR)),
    "llama_biases_and_wide_heads": lambda: LlamaForCausalLM(
        LlamaConfig(**SHAPE, num_key_value_heads=1, head_dim=32, attention_bias=True, mlp_bias=True)
    ),
    "smollm_tied": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE, num_key_value_heads=2, tie_word_embeddings=True)),
    "mistral_window": lambda: MistralForCausalLM(
        MistralConfig(**SHAPE, num_key_value_heads=2, head_dim=32, sliding_window=7)
    ),
    "mistral_no_window": lambda: MistralForCausalLM(MistralConfig(**SHAPE, num_key_value_heads=2, sliding_window=None)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SHAPE, num_key_value_heads=2, tie_word_embeddings=True)),
    "qwen2_windowed_layers": lambda: Qwen2ForCausalLM(
        Qwen2Config(**SHAPE, num_key_value_heads=2, use_sliding_window=True, sliding_window=5, max_window_layers=1)
    ),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SHAPE, num_key_value_heads=2, head_dim=32)),
}

LENGTHS = (1, 2, 15, 16, 17, 40, 75)
"""Prompts at, below and past the edges of blocks of 16, of the windows and of the context before scaling."""


def _random_model(name: str) -> PreTrainedModel:
    """Every parameter drawn, norms and biases too, so that none hides behind its initial 1 or 0."""
    torch.manual_seed(sum(name.encode()))
    model = MODELS[name]().eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            spread = torch.randn_like(parameter)
            parameter.copy_(1 + 0.3 * spread if "norm" in parameter_name else 0.15 * spread)
    return model


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    return _random_model(request.param)


@pytest.fixture(scope="module", params=["one file", "shards"])
def folder(request: pytest.FixtureRequest, model: PreTrainedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    model.save_pretrained(path, max_shard_size="60KB" if request.param == "shards" else "1GB")
    assert (path / "model.safetensors").exists() == (request.param == "one file")
    return path


def _prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(0, VOCAB, (n,), generator=generator).tolist() for n in LENGTHS]


def _oracle(model: PreTrainedModel, ids: list[int]) -> torch.Tensor:
    """Logits of every position, float32 [n, vocab], computed alone and without a cache."""
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([ids]), use_cache=False).logits[0]
    return logits


def test_logits_equal_those_of_transformers(
    model: PreTrainedModel, folder: Path, open_runner: Callable[..., CpuRunner]
) -> None:
    prompts = _prompts()
    ours = last_logits(open_runner(folder), prompts)
    theirs = torch.stack([_oracle(model, ids)[-1] for ids in prompts])
    assert theirs.abs().max() > 0.5
    torch.testing.assert_close(ours, theirs, atol=3e-5, rtol=3e-5)


def test_greedy_tokens_equal_those_of_transformers(
    model: PreTrainedModel,
    folder: Path,
    open_runner: Callable[..., CpuRunner],
    run_greedy: Callable[..., list[list[int]]],
) -> None:
    prompts = _prompts()
    outputs = run_greedy(open_runner(folder), prompts, new_tokens=24, budget=13)
    for prompt, output in zip(prompts, outputs, strict=True):
        # Greedy by induction: each token is the largest logit after all that precede it.
        expected = _oracle(model, prompt + output)[len(prompt) - 1 : -1].argmax(-1)
        assert output == expected.tolist()


def test_a_window_changes_the_result(open_runner: Callable[..., CpuRunner], tmp_path: Path) -> None:
    """The windowed models above would prove nothing if their windows had no effect."""
    _random_model("mistral_window").save_pretrained(tmp_path)
    windowed = last_logits(open_runner(tmp_path), _prompts())
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "sliding_window": None}))
    whole = last_logits(open_runner(tmp_path), _prompts())
    assert torch.equal(windowed[:2], whole[:2])
    assert ((windowed - whole).abs().amax(dim=1)[2:] > 1e-2).all()


@pytest.mark.parametrize("name", ["llama31_scaled", "llama_linear"])
def test_scaling_changes_the_result(name: str, open_runner: Callable[..., CpuRunner], tmp_path: Path) -> None:
    """The scaled models above would prove nothing if their scaling had no effect."""
    _random_model(name).save_pretrained(tmp_path)
    scaled = last_logits(open_runner(tmp_path), _prompts())
    config = json.loads((tmp_path / "config.json").read_text())
    plain = {"rope_type": "default", "rope_theta": config["rope_parameters"]["rope_theta"]}
    (tmp_path / "config.json").write_text(json.dumps({**config, "rope_parameters": plain}))
    unscaled = last_logits(open_runner(tmp_path), _prompts())
    # The first position does not turn.
    assert torch.equal(scaled[:1], unscaled[:1])
    assert ((scaled - unscaled).abs().amax(dim=1)[2:] > 1e-2).all()


@pytest.mark.parametrize("spelling", ["type", "rope_type"])
@pytest.mark.parametrize("name", ["llama31_scaled", "llama_linear"])
def test_an_older_config_means_the_same(
    name: str, spelling: str, open_runner: Callable[..., CpuRunner], tmp_path: Path
) -> None:
    """`rope_scaling` beside `rope_theta`, as transformers wrote it before version 5."""
    model = _random_model(name)
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    scaling = config.pop("rope_parameters")
    theta, kind = scaling.pop("rope_theta"), scaling.pop("rope_type")
    (tmp_path / "config.json").write_text(
        json.dumps({**config, "rope_theta": theta, "rope_scaling": {**scaling, spelling: kind}})
    )
    ours = last_logits(open_runner(tmp_path), _prompts())
    theirs = torch.stack([_oracle(model, ids)[-1] for ids in _prompts()])
    torch.testing.assert_close(ours, theirs, atol=3e-5, rtol=3e-5)


def test_stored_half_precision_is_widened_exactly(open_runner: Callable[..., CpuRunner], tmp_path: Path) -> None:
    for dtype in (torch.bfloat16, torch.float16):
        model = _random_model("qwen3").to(dtype)
        model.save_pretrained(tmp_path / str(dtype))
        ours = last_logits(open_runner(tmp_path / str(dtype)), _prompts())
        # Read back rather than widened in place: that would keep the rotation's frequencies rounded to half precision.
        oracle = type(model).from_pretrained(tmp_path / str(dtype), dtype=torch.float32)
        theirs = torch.stack([_oracle(oracle, ids)[-1] for ids in _prompts()])
        torch.testing.assert_close(ours, theirs, atol=3e-5, rtol=3e-5)


def test_the_config_says_what_transformers_read(model: PreTrainedModel, folder: Path) -> None:
    config, theirs = open_checkpoint(folder).config, model.config
    assert config.family.value == type(model).__name__
    assert (config.layers, config.heads, config.kv_heads) == (3, 4, theirs.num_key_value_heads)
    assert config.head_dim == getattr(theirs, "head_dim", None) or config.head_dim == 16
    assert config.rope_theta == theirs.rope_parameters["rope_theta"]
    assert config.tied_embeddings == theirs.tie_word_embeddings
