"""Fills in what a request leaves open."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from pagemill.v1 import generation_pb2
from pagemill_common import errors
from pagemill_common.intake.facts import ModelFacts
from pagemill_common.intake.presence import is_set

__all__ = [
    "MIN_REPETITION_PENALTY",
    "MIN_TEMPERATURE",
    "ResolvedSampling",
    "new_request_id",
    "resolve_model",
    "resolve_sampling",
]

MIN_TEMPERATURE = 1e-5
"""A lower temperature is greedy: logits divided by it would leave float32's range."""
MIN_REPETITION_PENALTY = 1e-5
"""A lower one acts like this, for the same reason."""


@dataclass(frozen=True, slots=True)
class ResolvedSampling:
    """How the next token is drawn, every knob decided. Floats are exact in float32, so that the wire carries them
    unchanged.
    """

    temperature: float = 1.0
    """0 is greedy."""
    top_k: int = 0
    """0 keeps all."""
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: dict[int, float] = field(default_factory=dict)
    banned_token_ids: tuple[int, ...] = ()
    seed: int | None = None
    """Unsigned, 64 bits. None: the caller leaves it to the router."""


class _Named(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def aliases(self) -> Iterable[str]: ...


_Model = TypeVar("_Model", bound=_Named)


def resolve_model(name: str, models: Iterable[_Model]) -> _Model:
    """The model that a caller means: by name, else by alias; an empty name is the only model.

    Raises StatusError: NOT_FOUND with the known names, INVALID_ARGUMENT where an empty name could mean several.
    """
    known = sorted(models, key=lambda model: model.name)
    names = [model.name for model in known]
    if not name:
        if len(known) > 1:
            raise errors.bad_fields([("model", f"is required, as several models are served: {', '.join(names[:8])}")])
        if not known:
            raise errors.model_not_found(name, names)
        return known[0]
    for model in known:
        if model.name == name:
            return model
    for model in known:
        if name in model.aliases:
            return model
    raise errors.model_not_found(name, names)


def new_request_id(random_bytes: Callable[[int], bytes]) -> str:
    """An id for a request that came without one: 32 hexadecimal digits. `random_bytes` is like os.urandom."""
    return random_bytes(16).hex()


def resolve_sampling(sampling: generation_pb2.SamplingParams, facts: ModelFacts) -> ResolvedSampling:
    """Unset knobs take the model's generation_config, else the contract's defaults."""

    def knob(name: str, default: float) -> float:
        if is_set(sampling, name):
            return float(getattr(sampling, name))
        defaults = facts.sampling_defaults
        if name in _IN_DEFAULTS and is_set(defaults, name):
            return float(getattr(defaults, name))
        return default

    temperature, top_k = knob("temperature", 1.0), int(knob("top_k", 0))
    return ResolvedSampling(
        temperature=0.0 if temperature < MIN_TEMPERATURE else _float32(temperature),
        top_k=0 if top_k >= facts.vocabulary_size else top_k,
        top_p=_float32(knob("top_p", 1.0)),
        min_p=_float32(knob("min_p", 0.0)),
        repetition_penalty=_float32(max(knob("repetition_penalty", 1.0), MIN_REPETITION_PENALTY)),
        frequency_penalty=_float32(knob("frequency_penalty", 0.0)),
        presence_penalty=_float32(knob("presence_penalty", 0.0)),
        logit_bias={token_id: sampling.logit_bias[token_id] for token_id in sorted(sampling.logit_bias)},
        banned_token_ids=unique(sampling.banned_token_ids),
        seed=sampling.seed if sampling.HasField("seed") else None,
    )


_IN_DEFAULTS = frozenset({"temperature", "top_k", "top_p", "min_p", "repetition_penalty"})
_Item = TypeVar("_Item", int, str)


def unique(items: Iterable[_Item]) -> tuple[_Item, ...]:
    """Without repetitions, in order of first occurrence."""
    return tuple(dict.fromkeys(items))


def _float32(value: float) -> float:
    rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]
    return rounded
