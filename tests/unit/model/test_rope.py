"""Rotation tables: cosine and sine of position times theta^(-2i / head size), scaled."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from pagemill_replica.checkpoint.rope_scaling import FrequencyFactors, LinearScaling, Llama3Scaling, RopeScaling
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


POSITIONS = torch.tensor([[0, 1, 4095, 8192, 65537, 100_000]])
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
"""As Llama 3.1 has it."""
LONG_AND_ODD = {**LLAMA3, "factor": 32, "low_freq_factor": 1.3, "high_freq_factor": 7, "rope_theta": 10000.0}

SCALINGS: list[tuple[dict[str, Any], RopeScaling | None]] = [
    ({"rope_type": "default"}, None),
    ({"rope_type": "linear", "factor": 4.0}, LinearScaling(4.0)),
    ({"rope_type": "linear", "factor": 1.3}, LinearScaling(1.3)),
    (LLAMA3, Llama3Scaling(8.0, 1.0, 4.0, 8192)),
    (LONG_AND_ODD, Llama3Scaling(32.0, 1.3, 7.0, 8192)),
]


def theirs(parameters: dict[str, Any], head_dim: int) -> LlamaRotaryEmbedding:
    config = LlamaConfig(
        hidden_size=2 * head_dim,
        num_attention_heads=2,
        head_dim=head_dim,
        max_position_embeddings=131072,
        rope_parameters={"rope_theta": 500000.0, **parameters},
    )
    return LlamaRotaryEmbedding(config)


@pytest.mark.parametrize("head_dim", [64, 80, 128])
@pytest.mark.parametrize(("parameters", "scaling"), SCALINGS)
def test_tables_equal_those_of_transformers(
    parameters: dict[str, Any], scaling: RopeScaling | None, head_dim: int
) -> None:
    """At 100000 positions float32 angles are off by some thousandths: equality matters, not accuracy."""
    embedding = theirs(parameters, head_dim)
    theirs_cos, theirs_sin = embedding(torch.zeros(1, 1, head_dim), POSITIONS)
    theta = embedding.config.rope_parameters["rope_theta"]
    cos, sin = rotation_tables(head_dim, theta, 100_001, CPU, scaling=scaling)
    assert torch.equal(cos[POSITIONS[0]], theirs_cos[0, :, : head_dim // 2])
    assert torch.equal(sin[POSITIONS[0]], theirs_sin[0, :, : head_dim // 2])


def frequencies(scaling: RopeScaling | None, head_dim: int = 64, theta: float = 500000.0) -> torch.Tensor:
    """Radians a position, read off position 1; none reaches half a turn."""
    cos, sin = rotation_tables(head_dim, theta, 2, CPU, scaling=scaling)
    return torch.atan2(sin, cos)[1]


def test_linear_scaling_slows_every_pair_alike() -> None:
    torch.testing.assert_close(frequencies(LinearScaling(4.0)), frequencies(None) / 4, rtol=1e-5, atol=1e-9)


def test_llama3_scaling_slows_long_waves_keeps_short_ones_and_blends_between() -> None:
    slowed = frequencies(None) / frequencies(SCALINGS[3][1])
    wavelengths = 2 * math.pi / frequencies(None)
    long, short = wavelengths > 8192, wavelengths < 2048
    between = ~long & ~short
    assert all(part.sum() >= 2 for part in (long, short, between))
    torch.testing.assert_close(slowed[long], torch.full((int(long.sum()),), 8.0), rtol=1e-5, atol=0)
    torch.testing.assert_close(slowed[short], torch.ones(int(short.sum())), rtol=1e-5, atol=0)
    assert ((slowed[between] > 1) & (slowed[between] < 8)).all()
    assert (slowed[1:] - slowed[:-1] > -1e-4).all()


def test_each_pair_has_its_own_divisor() -> None:
    factors = (1.0, 1.0, 3.0, 1e30)
    ratio = frequencies(FrequencyFactors(factors), head_dim=8) / frequencies(None, head_dim=8)
    torch.testing.assert_close(ratio, 1 / torch.tensor(factors), rtol=1e-5, atol=0)


@pytest.mark.parametrize(
    "scaling",
    [
        LinearScaling(1e308),
        Llama3Scaling(1e308, 5e-324, 1e308, 1),
        Llama3Scaling(1.0, 1e-300, 2e-300, 1 << 24),
        Llama3Scaling(8.0, 1.0, math.nextafter(1.0, 2.0), 8192),
        FrequencyFactors((1e-3, 3e38, 1.0, 1.0)),
    ],
)
def test_no_scaling_that_is_accepted_gives_an_entry_that_is_no_number(scaling: RopeScaling) -> None:
    assert scaling.problem(4) is None
    cos, sin = rotation_tables(8, 10000.0, 1000, CPU, scaling=scaling)
    assert (cos.isfinite() & sin.isfinite()).all()
