"""Rotation tables: cosine and sine of position times theta^(-2i / head size)."""

from __future__ import annotations

import math

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from pagemill_replica.model.rope import rotation_tables

CPU = torch.device("cpu")


@pytest.mark.parametrize(("head_dim", "theta"), [(2, 10000.0), (64, 10000.0), (128, 1e6), (80, 500000.0)])
def test_entries_follow_the_formula(head_dim: int, theta: float) -> None:
    cos, sin = rotation_tables(head_dim, theta, 300, CPU)
    assert cos.shape == sin.shape == (300, head_dim // 2)
    assert cos.dtype == sin.dtype == torch.float32
    for position in (0, 1, 7, 299):
        for pair in {0, 1 % (head_dim // 2), head_dim // 2 - 1}:
            angle = position * theta ** (-2 * pair / head_dim)
            # Half a step of float32 at the largest angle.
            assert cos[position, pair].item() == pytest.approx(math.cos(angle), abs=2e-5)
            assert sin[position, pair].item() == pytest.approx(math.sin(angle), abs=2e-5)


def test_position_0_does_not_turn() -> None:
    cos, sin = rotation_tables(64, 10000.0, 1, CPU)
    assert torch.equal(cos, torch.ones(1, 32))
    assert torch.equal(sin, torch.zeros(1, 32))


def test_the_first_pair_turns_one_radian_a_position_and_later_ones_slower() -> None:
    cos, sin = rotation_tables(16, 10000.0, 4, CPU)
    angles = torch.atan2(sin, cos)[1]
    assert angles[0].item() == pytest.approx(1.0, abs=1e-6)
    ratios = angles[1:] / angles[:-1]
    torch.testing.assert_close(ratios, torch.full((7,), 10000 ** (-2 / 16)), rtol=1e-5, atol=0)


def test_a_longer_table_begins_with_the_shorter_one() -> None:
    """Else the context served would change answers."""
    short, long = rotation_tables(64, 1e6, 100, CPU), rotation_tables(64, 1e6, 4096, CPU)
    assert torch.equal(short[0], long[0][:100])
    assert torch.equal(short[1], long[1][:100])


def test_large_positions_round_as_transformers_rounds_them() -> None:
    """At 100000 positions float32 angles are off by some thousandths: equality matters, not accuracy."""
    config = LlamaConfig(
        hidden_size=128,
        num_attention_heads=2,
        head_dim=64,
        max_position_embeddings=131072,
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
    )
    positions = torch.tensor([[0, 1, 4095, 65537, 100_000]])
    theirs_cos, theirs_sin = LlamaRotaryEmbedding(config)(torch.zeros(1, 5, 64), positions)
    cos, sin = rotation_tables(64, 500000.0, 100_001, CPU)
    assert torch.equal(cos[positions[0]], theirs_cos[0, :, :32])
    assert torch.equal(sin[positions[0]], theirs_sin[0, :, :32])
