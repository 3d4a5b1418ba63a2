"""From a caller's request to a prepared one: checks of every field, the prompt's tokens, every knob decided."""

from __future__ import annotations

from pagemill_common.intake.checks import check_fields, crowded, valid_request_id
from pagemill_common.intake.facts import Limits, ModelFacts
from pagemill_common.intake.forward import to_forwarded
from pagemill_common.intake.offload import LONG_BYTES, Offload
from pagemill_common.intake.prepare import Prepared, prepare
from pagemill_common.intake.resolve import ResolvedSampling, new_request_id, resolve_model
from pagemill_common.intake.tokenise import detokenize, tokenize

__all__ = [
    "LONG_BYTES",
    "Limits",
    "ModelFacts",
    "Offload",
    "Prepared",
    "ResolvedSampling",
    "check_fields",
    "crowded",
    "detokenize",
    "new_request_id",
    "prepare",
    "resolve_model",
    "to_forwarded",
    "tokenize",
    "valid_request_id",
]
