"""config.json and generation_config.json: what they mean, and one clear error for what cannot be served."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pagemill_replica.checkpoint import CheckpointError, Family, open_checkpoint
from pagemill_replica.checkpoint.config import MAX_CONTEXT, ModelConfig
from pagemill_replica.checkpoint.fields import Fields
from pagemill_replica.checkpoint.hf_config import parse_config, parse_generation
from support.checkpoints import llama, write_folder, write_json

FILE = Path("folder/config.json")
MISTRAL = {"architectures": ["MistralForCausalLM"]}
QWEN2 = {"architectures": ["Qwen2ForCausalLM"]}
QWEN3 = {"architectures": ["Qwen3ForCausalLM"]}


def parsed(**changes: Any) -> ModelConfig:
    return parse_config(Fields(FILE, llama(**changes)))


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"architectures": ["GPT2LMHeadModel"]}, r"architecture GPT2LMHeadModel is not supported; supported: LlamaFor"),
    ({"architectures": ["LlamaForCausalLM", "Other"]}, r"architecture LlamaForCausalLM, Other is not supported"),
    ({"architectures": "LlamaForCausalLM"}, r"architecture LlamaForCausalLM is not supported"),
    ({"architectures": [{}]}, r"architecture {} is not supported"),
    ({"architectures": []}, r"architecture  ?is not supported"),
    ({"architectures": ..., "model_type": "gpt2"}, r"model_type 'gpt2' is not supported; supported: LlamaForCausalLM"),
    ({"architectures": ...}, r"lacks model_type"),
    ({"num_attention_heads": ...}, r"lacks num_attention_heads"),
    ({"vocab_size": None}, r"lacks vocab_size"),
    ({"hidden_size": "32"}, r"hidden_size is '32'; it must be a whole number"),
    ({"hidden_size": 32.0}, r"hidden_size is '32.0'; it must be a whole number"),
    ({"hidden_size": True}, r"hidden_size is 'True'; it must be a whole number"),
    ({"hidden_size": 0}, r"hidden_size is 0; it must be at least 1"),
    ({"vocab_size": -1}, r"vocab_size is -1; it must be at least 1"),
    ({"num_attention_heads": 0}, r"hidden size of 32 cannot be shared by 0 heads"),
    ({"num_attention_heads": 5}, r"hidden size of 32 cannot be shared by 5 heads, and head_dim is not given"),
    ({"num_attention_heads": 0, "head_dim": 8}, r"heads is 0; it must be at least 1"),
    ({"head_dim": 0}, r"head_dim is 0; it must be at least 1"),
    ({"head_dim": 7}, r"head size 7 is odd; rotation needs pairs"),
    ({"num_key_value_heads": 3}, r"4 heads cannot share 3 kv heads evenly"),
    ({"num_key_value_heads": 8}, r"4 heads cannot share 8 kv heads evenly"),
    ({"num_key_value_heads": 0}, r"kv_heads is 0; it must be at least 1"),
    ({"num_hidden_layers": 0}, r"num_hidden_layers is '0'; it must be between 1 and 1024"),
    ({"num_hidden_layers": 10**11}, r"num_hidden_layers is '100000000000'; it must be between 1 and 1024"),
    ({"num_hidden_layers": 10**30}, r"num_hidden_layers is '1000000000000000000000000000000'; it must be"),
    ({"max_position_embeddings": 10**12}, rf"max_context is 1000000000000; it must be at most {MAX_CONTEXT}"),
    ({"rms_norm_eps": 0}, r"rms eps is 0.0; it must be between 0 and 1"),
    ({"rms_norm_eps": float("nan")}, r"rms_norm_eps is 'nan'; it must be a finite number"),
    ({"rope_theta": float("inf")}, r"rope_theta is 'inf'; it must be a finite number"),
    ({"rope_theta": 10**400}, r"rope_theta is '1000+'; it must be a finite number"),
    ({"rope_theta": 1}, r"rope theta is 1.0; it must be finite and above 1"),
    ({"hidden_act": "gelu"}, r"activation gelu is not supported; supported: silu"),
    ({"quantization_config": {"quant_method": "gptq"}}, r"quantised weights \(gptq\) are not supported"),
    ({"quantization_config": {}}, r"quantised weights \(of an unnamed kind\) are not supported"),
    ({"tie_word_embeddings": "yes"}, r"tie_word_embeddings is 'yes'; it must be true or false"),
    ({"eos_token_id": 48}, r"special token ids \[1, 48\] must lie in the vocabulary of 48"),
    ({"eos_token_id": [2, "3"]}, r"eos_token_id is .* it must be a whole number or a list of them"),
    ({"bos_token_id": -1}, r"special token ids \[-1, 2\] must lie in the vocabulary"),
    ({**MISTRAL, "sliding_window": -1}, r"sliding window is -1; it must be between 0 and 2147483647"),
    ({**MISTRAL, "sliding_window": 1 << 40}, r"sliding window is 1099511627776; it must be"),
    ({**QWEN2, "use_sliding_window": True, "layer_types": [{}, {}]}, r"layer_types must say full_attention or sliding"),
    ({**QWEN2, "use_sliding_window": True, "layer_types": ["full_attention"]}, r"layer_types must say .* for 2 layers"),
]


@pytest.mark.parametrize(("changes", "reason"), REFUSED)
def test_what_cannot_be_served_is_named(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(CheckpointError, match=reason) as caught:
        parsed(**changes)
    assert str(caught.value).startswith(f"{FILE}: ")


def test_a_plain_config_means_what_it_says() -> None:
    config = parsed()
    assert (config.family, config.vocab_size, config.hidden_size, config.layers) == (Family.LLAMA, 48, 32, 2)
    assert (config.heads, config.kv_heads, config.head_dim, config.intermediate_size) == (4, 2, 8, 64)
    assert (config.rms_eps, config.rope_theta, config.max_context) == (1e-5, 10000.0, 128)
    assert (config.bos_token_id, config.eos_token_ids, config.pad_token_id) == (1, (2,), None)
    assert (config.query_size, config.kv_size) == (32, 16)


@pytest.mark.parametrize(("value", "tied"), [(True, True), (False, False), (None, False), (..., False)])
def test_embeddings_are_tied_where_the_config_says_so(value: object, tied: bool) -> None:
    assert parsed(tie_word_embeddings=value).tied_embeddings is tied


@pytest.mark.parametrize(
    ("changes", "kv_heads"),
    [
        ({"num_key_value_heads": ...}, 4),
        ({"num_key_value_heads": None}, 4),
        ({**MISTRAL, "num_attention_heads": 16, "num_key_value_heads": ...}, 8),
        ({**MISTRAL, "num_attention_heads": 16, "num_key_value_heads": None}, 16),
    ],
)
def test_absent_and_null_kv_heads_differ_by_family(changes: dict[str, Any], kv_heads: int) -> None:
    assert parsed(**changes).kv_heads == kv_heads


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({"sliding_window": 16}, (0, 0)),
        ({**MISTRAL, "sliding_window": 16}, (16, 16)),
        ({**MISTRAL, "sliding_window": None}, (0, 0)),
        (MISTRAL, (4096, 4096)),
        ({**QWEN2, "sliding_window": 16}, (0, 0)),
        ({**QWEN2, "sliding_window": 16, "use_sliding_window": True, "max_window_layers": 1}, (0, 16)),
        ({**QWEN2, "sliding_window": 16, "use_sliding_window": True}, (0, 0)),
        (
            {
                **QWEN3,
                "sliding_window": 16,
                "use_sliding_window": True,
                "layer_types": ["sliding_attention", "full_attention"],
            },
            (16, 0),
        ),
    ],
)
def test_windows_are_per_layer(changes: dict[str, Any], windows: tuple[int, ...]) -> None:
    config = parsed(**changes)
    assert config.layer_windows == windows
    assert config.sliding_window == max(windows)


@pytest.mark.parametrize(
    ("changes", "attention", "output", "qk_norm"),
    [
        ({}, False, False, False),
        ({"attention_bias": True}, True, True, False),
        (QWEN2, True, False, False),
        ({**QWEN2, "attention_bias": True}, True, False, False),
        (QWEN3, False, False, True),
        ({**QWEN3, "attention_bias": True}, True, True, True),
    ],
)
def test_biases_and_norms_follow_the_family(
    changes: dict[str, Any], attention: bool, output: bool, qk_norm: bool
) -> None:
    config = parsed(**changes)
    assert (config.attention_bias, config.output_bias, config.qk_norm) == (attention, output, qk_norm)


@pytest.mark.parametrize("model_type", ["llama", "mistral", "qwen2", "qwen3"])
def test_a_model_type_stands_in_for_architectures(model_type: str) -> None:
    assert parsed(architectures=None, model_type=model_type).family.name.lower() == model_type


def test_qwen3_heads_have_128_numbers_where_none_is_given() -> None:
    assert parsed(**QWEN3).head_dim == 128
    assert parsed(**QWEN3, head_dim=8).head_dim == 8


def test_a_negative_pad_id_means_none() -> None:
    assert parsed(pad_token_id=-1).pad_token_id is None
    assert parsed(pad_token_id=0).pad_token_id == 0


GENERATION_REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"temperature": -0.1}, r"temperature is -0.1; it must not be negative"),
    ({"top_k": -1}, r"top_k is -1; it must not be negative"),
    ({"top_p": 0}, r"top_p is 0.0; it must be above 0 and at most 1"),
    ({"top_p": 1.01}, r"top_p is 1.01"),
    ({"min_p": -0.1}, r"min_p is -0.1; it must be between 0 and 1"),
    ({"repetition_penalty": 0}, r"repetition_penalty is 0.0; it must be above 0"),
    ({"temperature": "hot"}, r"temperature is 'hot'; it must be a finite number"),
    ({"eos_token_id": [2, 99]}, r"eos_token_id \[2, 99\] leaves the vocabulary of 48"),
]


@pytest.mark.parametrize(("values", "reason"), GENERATION_REFUSED)
def test_sampling_advice_out_of_range_is_named(values: dict[str, Any], reason: str) -> None:
    with pytest.raises(CheckpointError, match=reason):
        parse_generation(Fields(FILE, values), parsed())


def test_sampling_advice_and_every_end_of_text_id_are_kept() -> None:
    values = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0, "eos_token_id": [7, 2, 5]}
    defaults = parse_generation(Fields(FILE, values), parsed(eos_token_id=[3, 2]))
    assert (defaults.temperature, defaults.top_k, defaults.top_p, defaults.min_p) == (0.6, 20, 0.95, 0.0)
    assert defaults.repetition_penalty is None
    assert defaults.eos_token_ids == (7, 2, 5, 3)
    assert parse_generation(None, parsed(eos_token_id=[3, 2])).eos_token_ids == (3, 2)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is not valid JSON"),
        (b"{", "is not valid JSON"),
        (b"[1]", "is not a JSON object"),
        (b"\xff\xfe", "is not valid JSON"),
        (b'{"a":' + b"[" * 200_000, "is not valid JSON"),
        (b"version https://git-lfs.github.com/spec/v1\n", "is a Git LFS pointer"),
    ],
)
@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_a_file_that_is_no_json_object_is_named(name: str, content: bytes, reason: str, tmp_path: Path) -> None:
    write_folder(tmp_path)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=f"{name}: {reason}"):
        open_checkpoint(tmp_path)


def test_a_config_of_a_terabyte_is_not_read(tmp_path: Path) -> None:
    write_folder(tmp_path)
    with (tmp_path / "config.json").open("ab") as stream:
        stream.truncate(1 << 40)
    with pytest.raises(CheckpointError, match=r"config\.json: is larger than 64 MiB"):
        open_checkpoint(tmp_path)


def test_generation_defaults_may_be_absent(tmp_path: Path) -> None:
    assert open_checkpoint(write_folder(tmp_path)).generation.eos_token_ids == (2,)
    write_json(tmp_path / "generation_config.json", {"eos_token_id": 4})
    assert open_checkpoint(tmp_path).generation.eos_token_ids == (4, 2)
