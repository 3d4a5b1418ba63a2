"""What each part of the decoder does to the logits, by properties that need no oracle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pagemill_replica.model import Decoder
from support.checkpoints import llama, random_weights

IDS = [3, 17, 40, 5, 9, 22, 31, 8, 14]
MISTRAL = llama(architectures=["MistralForCausalLM"], sliding_window=None)
QWEN3 = llama(architectures=["Qwen3ForCausalLM"], head_dim=8)
Compute = Callable[..., Tensor]
Q0, K0 = "model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.k_proj"


def assert_close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


def changed_rows(a: Tensor, b: Tensor) -> list[int]:
    return ((a - b).abs().amax(dim=1) > 1e-4).nonzero().flatten().tolist()


def test_rows_that_sample_get_the_logits_that_all_rows_would(
    decoder: Callable[..., Decoder], one_sequence: Callable[..., Any]
) -> None:
    model = decoder(llama())
    every = one_sequence(model).step(IDS, range(len(IDS)))
    assert every.shape == (len(IDS), 48)
    assert every.dtype == torch.float32
    some = one_sequence(model).step(IDS, [2, 8])
    assert_close(some, every[[2, 8]])


def test_a_step_that_samples_nothing_still_writes_keys_and_values(
    decoder: Callable[..., Decoder], one_sequence: Callable[..., Any]
) -> None:
    model = decoder(llama())
    whole = one_sequence(model).step(IDS, [len(IDS) - 1])
    sequence = one_sequence(model)
    nothing = sequence.step(IDS[:5], [])
    assert nothing.shape == (0, 48)
    assert nothing.dtype == torch.float32
    assert_close(sequence.step(IDS[5:], [len(IDS) - 6]), whole)


def test_a_position_sees_itself_and_what_precedes_it(logits_of: Compute) -> None:
    other = [*IDS[:4], 47, *IDS[5:]]
    assert changed_rows(logits_of(llama(), None, IDS), logits_of(llama(), None, other)) == [4, 5, 6, 7, 8]


@pytest.mark.parametrize("window", [1, 2, 4])
def test_a_window_of_n_reaches_the_n_latest_positions(window: int, logits_of: Compute) -> None:
    """In one layer; k layers reach k * (n - 1) back."""
    config = {**MISTRAL, "num_hidden_layers": 1, "sliding_window": window}
    other = [*IDS[:2], 47, *IDS[3:]]
    changed = changed_rows(logits_of(config, None, IDS), logits_of(config, None, other))
    assert changed == list(range(2, 2 + window))


def test_windows_hold_in_their_layers_only(logits_of: Compute) -> None:
    """Layer 0 with a window of 2, layer 1 without: a change reaches all later positions through layer 1."""
    config = {
        **QWEN3,
        "use_sliding_window": True,
        "sliding_window": 2,
        "layer_types": ["sliding_attention", "full_attention"],
    }
    other = [*IDS[:2], 47, *IDS[3:]]
    assert changed_rows(logits_of(config, None, IDS), logits_of(config, None, other)) == [2, 3, 4, 5, 6, 7, 8]
    both = {**config, "layer_types": ["sliding_attention"] * 2}
    assert changed_rows(logits_of(both, None, IDS), logits_of(both, None, other)) == [2, 3, 4]


def test_a_window_past_the_sequence_changes_nothing(logits_of: Compute) -> None:
    assert_close(logits_of({**MISTRAL, "sliding_window": 9}, None, IDS), logits_of(MISTRAL, None, IDS))
    assert_close(logits_of({**MISTRAL, "sliding_window": 4096}, None, IDS), logits_of(MISTRAL, None, IDS))


def test_norms_of_heads_take_the_size_out_of_q_and_k(logits_of: Compute) -> None:
    weights = random_weights(QWEN3)
    scaled = {**weights, f"{Q0}.weight": weights[f"{Q0}.weight"] * 8, f"{K0}.weight": weights[f"{K0}.weight"] / 8}
    # Up to the eps under the root.
    torch.testing.assert_close(logits_of(QWEN3, scaled, IDS), logits_of(QWEN3, weights, IDS), atol=2e-2, rtol=0)
    larger = {
        **weights,
        "model.layers.0.self_attn.q_norm.weight": weights["model.layers.0.self_attn.q_norm.weight"] * 8,
    }
    assert (logits_of(QWEN3, larger, IDS) - logits_of(QWEN3, weights, IDS)).abs().max() > 0.1
    plain = random_weights(llama())
    only_q = {**plain, f"{Q0}.weight": plain[f"{Q0}.weight"] * 8}
    assert (logits_of(llama(), only_q, IDS) - logits_of(llama(), plain, IDS)).abs().max() > 0.1


@pytest.mark.parametrize(
    "part", ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.down_proj"]
)
@pytest.mark.parametrize("layer", [0, 1])
def test_every_bias_counts(part: str, layer: int, logits_of: Compute) -> None:
    config = llama(attention_bias=True, mlp_bias=True)
    weights = random_weights(config)
    name = f"model.layers.{layer}.{part}.bias"
    without = {**weights, name: np.zeros_like(weights[name])}
    assert (logits_of(config, weights, IDS) - logits_of(config, without, IDS)).abs().max() > 1e-3


def test_the_gate_closes_the_mlp_and_the_other_half_does_not(logits_of: Compute) -> None:
    """silu(-1000) is 0."""
    config = llama(mlp_bias=True)
    weights = random_weights(config)

    def biased(part: str) -> Tensor:
        biases = {f"model.layers.{n}.mlp.{part}.bias": np.full(64, -1000, np.float32) for n in (0, 1)}
        return logits_of(config, {**weights, **biases}, IDS)

    closed = {n: np.zeros_like(w) if n.endswith("down_proj.weight") else w for n, w in weights.items()}
    assert_close(biased("gate_proj"), logits_of(config, closed, IDS))
    assert (biased("up_proj") - logits_of(config, closed, IDS)).abs().max() > 0.1


def test_biases_of_zero_are_no_biases(logits_of: Compute) -> None:
    config = llama(attention_bias=True, mlp_bias=True)
    weights = {n: np.zeros_like(w) if n.endswith(".bias") else w for n, w in random_weights(config).items()}
    plain = {n: w for n, w in weights.items() if not n.endswith(".bias")}
    assert_close(logits_of(config, weights, IDS), logits_of(llama(), plain, IDS))


def test_a_tied_head_is_the_embedding(logits_of: Compute) -> None:
    weights = random_weights(llama())
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    tied = {name: values for name, values in weights.items() if name != "lm_head.weight"}
    expected = logits_of(llama(), weights, IDS)
    assert_close(logits_of(llama(tie_word_embeddings=True), tied, IDS), expected)
    untied = {**weights, "lm_head.weight": weights["lm_head.weight"] + np.float32(0.1)}
    assert (logits_of(llama(), untied, IDS) - expected).abs().max() > 0.1
    # A head beside tied embeddings is not read.
    assert_close(logits_of(llama(tie_word_embeddings=True), untied, IDS), expected)


def test_a_larger_theta_turns_less(logits_of: Compute) -> None:
    near, far = logits_of(llama(), None, IDS), logits_of(llama(rope_theta=1e6), None, IDS)
    # The first position turns by nothing under any theta.
    assert_close(near[:1], far[:1])
    assert (near[1:] - far[1:]).abs().max() > 1e-4
