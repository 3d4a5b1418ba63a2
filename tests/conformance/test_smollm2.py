"""SmolLM2-135M computes what transformers computes, from the same file read by two independent readers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from pagemill_common.tokenisation import ModelTokenizer
from pagemill_replica.checkpoint import open_checkpoint
from pagemill_replica.runner import CpuRunner
from pagemill_replica.tokenizer import build_bundle
from support.logits import last_logits

pytestmark = [pytest.mark.model, pytest.mark.timeout(600)]

NEW_TOKENS = 64
STEP_BUDGET = 160
"""Tokens a step: less than all prompts together, so that chunks of prompts run beside decodes."""

LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def _state_dict(file: Path, heads: int, kv_heads: int) -> dict[str, torch.Tensor]:
    """Weights by transformers' names, read and dequantised by the `gguf` package."""
    weights = {}
    for tensor in gguf.GGUFReader(file).tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        match = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", tensor.name)
        if match is None:
            top = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
            weights[top[tensor.name]] = torch.tensor(values)
            continue
        if match[2] in ("attn_q", "attn_k"):
            count = heads if match[2] == "attn_q" else kv_heads
            pairs = values.reshape(count, values.shape[0] // count // 2, 2, values.shape[1])
            values = np.concatenate((pairs[:, :, 0], pairs[:, :, 1]), axis=1).reshape(values.shape)
        weights[f"model.layers.{match[1]}.{LAYER_NAMES[match[2]]}.weight"] = torch.tensor(values)
    return weights


@pytest.fixture(scope="module")
def oracle(smollm2_file: Path) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
        tie_word_embeddings=True,
    )
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    model = model.to_empty(device="cpu")
    # Rotation frequencies are a buffer that no state dict holds: they come from a fresh module.
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    missing, unexpected = model.load_state_dict(_state_dict(smollm2_file, 9, 3), strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], [])
    model.tie_weights()
    return model.eval()


@pytest.fixture(scope="module")
def tokenizer(smollm2_file: Path) -> ModelTokenizer:
    return ModelTokenizer.from_bundle(build_bundle(open_checkpoint(smollm2_file)))


@pytest.fixture(scope="module")
def prompts(tokenizer: ModelTokenizer) -> list[list[int]]:
    ids = []
    for prompt in json.loads((Path(__file__).parent / "prompts.json").read_text(encoding="utf-8")):
        if "chat" in prompt:
            message = [{"role": "user", "content": prompt["chat"]}]
            ids.append(tokenizer.encode_chat(message, add_generation_prompt=True, variables={}))
        else:
            ids.append(tokenizer.encode(prompt["text"]))
    assert len(ids) == 40
    assert len({len(prompt) for prompt in ids}) > 15
    return ids


def _oracle_logits(oracle: LlamaForCausalLM, ids: list[int], keep: int) -> torch.Tensor:
    """Logits of the last `keep` positions, the sequence computed alone, unpadded and without a cache."""
    with torch.inference_mode():
        logits: torch.Tensor = oracle(torch.tensor([ids]), use_cache=False, logits_to_keep=keep).logits[0]
    return logits


@pytest.fixture(scope="module")
def theirs(oracle: LlamaForCausalLM, prompts: list[list[int]]) -> torch.Tensor:
    """Transformers' logits of every prompt's last position, [40, vocab]."""
    return torch.cat([_oracle_logits(oracle, ids, 1) for ids in prompts])


def test_greedy_output_equals_transformers_token_for_token(
    smollm2_file: Path,
    oracle: LlamaForCausalLM,
    prompts: list[list[int]],
    tokenizer: ModelTokenizer,
    open_runner: Callable[..., CpuRunner],
    run_greedy: Callable[..., list[list[int]]],
) -> None:
    runner = open_runner(smollm2_file, kv_memory_bytes=1 << 30)
    outputs = run_greedy(runner, prompts, NEW_TOKENS, STEP_BUDGET)
    wrong = {}
    for index, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
        # If each token is transformers' largest logit after all before it, then by induction its own greedy output
        # is this one. One pass a prompt, and neither padding nor a batch can alter transformers' side.
        logits = _oracle_logits(oracle, prompt + output[:-1], NEW_TOKENS)
        if output != logits.argmax(-1).tolist():
            wrong[index] = tokenizer.decode(output)
    assert not wrong
    assert "Paris" in tokenizer.decode(outputs[0])


def test_float32_logits_agree(
    smollm2_file: Path, theirs: torch.Tensor, prompts: list[list[int]], open_runner: Callable[..., CpuRunner]
) -> None:
    chosen = [*range(6), *range(20, 30)]
    ours = last_logits(open_runner(smollm2_file), [prompts[n] for n in chosen])
    torch.testing.assert_close(ours, theirs[chosen], atol=2e-3, rtol=0)


def test_bfloat16_logits_agree_with_float32(
    smollm2_file: Path, theirs: torch.Tensor, prompts: list[list[int]], open_runner: Callable[..., CpuRunner]
) -> None:
    """Bounds are measured ones (relative error 0.057, divergence 0.021, mean difference 0.105) and some room.

    A wrong rotation, scale, norm or bias gives a relative error near 1.
    """
    ours = last_logits(open_runner(smollm2_file, dtype="bfloat16"), prompts)
    relative = (ours - theirs).norm(dim=1) / theirs.norm(dim=1)
    expected, found = theirs.log_softmax(-1), ours.log_softmax(-1)
    divergence = (expected.exp() * (expected - found)).sum(-1)
    assert relative.max() < 0.08
    assert divergence.max() < 0.04
    assert (ours - theirs).abs().mean() < 0.15
    assert (ours.argmax(-1) == theirs.argmax(-1)).sum() >= 36


def test_deterministic_runs_do_not_depend_on_batch_or_chunks(
    smollm2_file: Path,
    prompts: list[list[int]],
    open_runner: Callable[..., CpuRunner],
    run_greedy: Callable[..., list[list[int]]],
) -> None:
    runner = open_runner(smollm2_file, dtype="float32", deterministic=True)
    few = [prompts[0], prompts[24], prompts[37]]
    together = last_logits(runner, few)
    alone = torch.cat([last_logits(runner, [ids]) for ids in few])
    assert torch.equal(together, alone)
    assert run_greedy(runner, few, 8, budget=9) == [run_greedy(runner, [ids], 8, budget=500)[0] for ids in few]
