"""Rotation as config.json tells it: `rope_parameters` (transformers 5), or `rope_theta` and `rope_scaling` (before)."""

from __future__ import annotations

from pagemill_replica.checkpoint.errors import CheckpointError
from pagemill_replica.checkpoint.fields import Fields
from pagemill_replica.checkpoint.rope_scaling import LinearScaling, Llama3Scaling, RopeScaling

DEFAULT_THETA = 10000.0


def parse_rope(fields: Fields) -> tuple[float, RopeScaling | None]:
    """Theta and the scaling of the frequencies, None where there is none.

    Raises CheckpointError where the config asks for what the decoder does not compute.
    """
    if fields.number("partial_rotary_factor", 1.0) != 1.0:
        raise CheckpointError(fields.file, "a rotation of part of each head (partial_rotary_factor) is not supported")
    theta = fields.number("rope_theta", DEFAULT_THETA)
    key, section = _section(fields)
    if section is None:
        return theta, None
    if any(isinstance(value, dict) for value in section.values.values()):
        raise CheckpointError(fields.file, f"{key} that differ by layer are not supported")
    if section.number("partial_rotary_factor", 1.0) != 1.0:
        raise CheckpointError(fields.file, f"a rotation of part of each head ({key}) is not supported")
    return section.number("rope_theta", theta), _scaling(fields, section, key)


def _section(fields: Fields) -> tuple[str, Fields | None]:
    """The section that counts and its key: as in transformers, the old one where it holds anything."""
    old, new = fields.section("rope_scaling"), fields.section("rope_parameters")
    return ("rope_scaling", old) if old is not None and old.values else ("rope_parameters", new)


def _scaling(fields: Fields, section: Fields, key: str) -> RopeScaling | None:
    kind = section.text("rope_type", section.text("type", "default"))
    match kind:
        case "default":
            return None
        case "linear":
            return LinearScaling(section.number("factor"))
        case "llama3":
            return Llama3Scaling(
                factor=section.number("factor"),
                low_freq_factor=section.number("low_freq_factor"),
                high_freq_factor=section.number("high_freq_factor"),
                original_context=_original_context(fields, section),
            )
    raise CheckpointError(
        fields.file,
        f"rope scaling of type {kind[:80]} is not supported; supported: default, linear, llama3. Use a variant of the"
        f" model with one of these or, where its makers offer this one as an option for long texts, remove {key}",
    )


def _original_context(fields: Fields, section: Fields) -> int:
    """Beside the section it goes before the one inside, as in transformers; absent, it is the context served."""
    key = "original_max_position_embeddings"
    beside = fields.optional_integer(key)
    return section.integer(key, fields.integer("max_position_embeddings")) if beside is None else beside
