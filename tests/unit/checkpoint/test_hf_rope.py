"""Rotation in config.json: where theta and scaling are read from, and what is refused."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig

from pagemill_replica.checkpoint import CheckpointError, ModelConfig
from pagemill_replica.checkpoint.fields import Fields
from pagemill_replica.checkpoint.hf_config import parse_config
from pagemill_replica.checkpoint.rope_scaling import LinearScaling, Llama3Scaling, RopeScaling
from support.checkpoints import llama

FILE = Path("folder/config.json")
LINEAR = {"rope_type": "linear", "factor": 4.0}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
SCALED = Llama3Scaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_context=64)


def parsed(**changes: Any) -> ModelConfig:
    return parse_config(Fields(FILE, llama(**changes)))


def but(section: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A section with keys changed; `...` removes one."""
    return {key: value for key, value in {**section, **changes}.items() if value is not ...}


READ: list[tuple[dict[str, Any], float, RopeScaling | None]] = [
    ({}, 1e4, None),
    ({"rope_theta": 5e5}, 5e5, None),
    ({"rope_theta": 5e5, "rope_scaling": None}, 5e5, None),
    ({"rope_theta": 5e5, "rope_scaling": {}}, 5e5, None),
    ({"rope_theta": 5e5, "rope_scaling": {"type": "default"}}, 5e5, None),
    ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, 1e6, None),
    ({"rope_theta": 5e5, "rope_parameters": {"rope_theta": 1e6}}, 1e6, None),
    ({"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.5}}, 5e5, LinearScaling(2.5)),
    ({"rope_theta": 5e5, "rope_scaling": {"rope_type": "linear", "factor": 4}}, 5e5, LinearScaling(4.0)),
    ({"rope_scaling": {"type": "linear", "factor": 1}}, 1e4, LinearScaling(1.0)),
    ({"rope_scaling": {"type": "default", **LINEAR}}, 1e4, LinearScaling(4.0)),
    ({"rope_scaling": {**LINEAR, "rope_theta": 7e4}, "rope_theta": 5e5}, 7e4, LinearScaling(4.0)),
    ({"rope_parameters": {**LINEAR, "rope_theta": 1e6}}, 1e6, LinearScaling(4.0)),
    ({"rope_scaling": {}, "rope_parameters": {**LINEAR, "rope_theta": 1e6}}, 1e6, LinearScaling(4.0)),
    ({"rope_scaling": LINEAR, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, 1e4, LinearScaling(4.0)),
    ({"rope_scaling": LLAMA3, "rope_theta": 5e5}, 5e5, SCALED),
    ({"rope_scaling": {**but(LLAMA3, rope_type=...), "type": "llama3"}, "rope_theta": 5e5}, 5e5, SCALED),
    ({"rope_parameters": {**LLAMA3, "rope_theta": 5e5}}, 5e5, SCALED),
    (
        {"rope_scaling": LLAMA3, "original_max_position_embeddings": 32, "rope_theta": 5e5},
        5e5,
        Llama3Scaling(8.0, 1.0, 4.0, original_context=32),
    ),
    (
        {"rope_scaling": but(LLAMA3, original_max_position_embeddings=...), "rope_theta": 5e5},
        5e5,
        Llama3Scaling(8.0, 1.0, 4.0, original_context=128),
    ),
]


@pytest.mark.parametrize(("changes", "theta", "scaling"), READ)
def test_theta_and_scaling_are_read_from_old_and_new_places(
    changes: dict[str, Any], theta: float, scaling: RopeScaling | None
) -> None:
    config = parsed(**changes)
    assert (config.rope_theta, config.rope_scaling, config.max_context) == (theta, scaling, 128)


@pytest.mark.parametrize(("changes", "theta", "scaling"), READ)
def test_transformers_reads_the_same(changes: dict[str, Any], theta: float, scaling: RopeScaling | None) -> None:
    config = LlamaConfig(**copy.deepcopy(llama(**changes)))
    # As the rotation does before it computes anything.
    config.standardize_rope_params()
    read = config.rope_parameters
    assert read["rope_theta"] == theta
    match scaling:
        case None:
            assert read["rope_type"] == "default"
        case LinearScaling(factor):
            assert (read["rope_type"], read["factor"]) == ("linear", factor)
        case Llama3Scaling():
            assert read["rope_type"] == "llama3"
            assert read["original_max_position_embeddings"] == scaling.original_context


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"rope_scaling": {"rope_type": 3}}, r"rope_scaling.rope_type is '3'; it must be a string"),
    ({"rope_scaling": "linear"}, r"rope_scaling is 'linear'; it must be an object"),
    ({"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, r"rope_parameters that differ by layer"),
    ({"rope_parameters": {"full_attention": LINEAR}}, r"rope_parameters that differ by layer"),
    ({"rope_parameters": {"partial_rotary_factor": 0.5}}, r"rotation of part of each head \(rope_parameters\)"),
    ({"rope_scaling": {**LINEAR, "partial_rotary_factor": 0.5}}, r"rotation of part of each head \(rope_scaling\)"),
    ({"partial_rotary_factor": 0.5}, r"rotation of part of each head \(partial_rotary_factor\) is not supported"),
    ({"rope_scaling": but(LINEAR, factor=...)}, r"lacks rope_scaling.factor"),
    ({"rope_scaling": but(LINEAR, factor="4")}, r"rope_scaling.factor is '4'; it must be a finite number"),
    ({"rope_scaling": but(LINEAR, factor=True)}, r"rope_scaling.factor is 'True'; it must be a finite number"),
    ({"rope_scaling": but(LINEAR, factor=float("nan"))}, r"rope_scaling.factor is 'nan'; it must be a finite number"),
    ({"rope_scaling": but(LINEAR, factor=0)}, r"rope scaling has a factor of 0.0; it must be finite and at least 1"),
    ({"rope_scaling": but(LINEAR, factor=-4.0)}, r"rope scaling has a factor of -4.0; it must be finite and at least"),
    ({"rope_scaling": but(LINEAR, factor=0.25)}, r"rope scaling has a factor of 0.25; it must be finite and at least"),
    ({"rope_parameters": but(LLAMA3, factor=...)}, r"lacks rope_parameters.factor"),
    ({"rope_scaling": but(LLAMA3, factor=0.5)}, r"rope scaling has a factor of 0.5; it must be finite and at least 1"),
    ({"rope_scaling": but(LLAMA3, low_freq_factor=...)}, r"lacks rope_scaling.low_freq_factor"),
    ({"rope_scaling": but(LLAMA3, high_freq_factor=...)}, r"lacks rope_scaling.high_freq_factor"),
    ({"rope_scaling": but(LLAMA3, low_freq_factor=0)}, r"low_freq_factor of 0.0 and .* both must be above 0"),
    ({"rope_scaling": but(LLAMA3, low_freq_factor=-1)}, r"low_freq_factor of -1.0 and .* both must be above 0"),
    ({"rope_scaling": but(LLAMA3, low_freq_factor=4)}, r"low_freq_factor of 4.0 and a high_freq_factor of 4.0; both"),
    ({"rope_scaling": but(LLAMA3, low_freq_factor=8)}, r"low_freq_factor of 8.0 and a high_freq_factor of 4.0; both"),
    ({"rope_scaling": but(LLAMA3, original_max_position_embeddings=0)}, r"original context of 0; it must be between 1"),
    ({"rope_scaling": but(LLAMA3, original_max_position_embeddings=-1)}, r"original context of -1; it must be"),
    ({"rope_scaling": but(LLAMA3, original_max_position_embeddings=10**400)}, r"original context of 1000+; it must be"),
    ({"rope_scaling": but(LLAMA3, original_max_position_embeddings=64.5)}, r"embeddings is '64.5'; it must be a whole"),
    ({"rope_scaling": LLAMA3, "original_max_position_embeddings": 0}, r"original context of 0; it must be between 1"),
]


@pytest.mark.parametrize(("changes", "reason"), REFUSED)
def test_what_cannot_be_turned_is_named(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(CheckpointError, match=reason) as caught:
        parsed(**changes)
    assert str(caught.value).startswith(f"{FILE}: ")


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize("spelling", ["type", "rope_type"])
@pytest.mark.parametrize("kind", ["yarn", "longrope", "dynamic", "su", "mrope", "Linear", ""])
def test_another_kind_of_scaling_is_named_with_what_to_do(key: str, spelling: str, kind: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        parsed(**{key: {spelling: kind, "factor": 4.0}})
    assert f"rope scaling of type {kind} is not supported; supported: default, linear, llama3" in caught.value.reason
    assert caught.value.reason.endswith(f"remove {key}")
    assert "Use a variant" in caught.value.reason
