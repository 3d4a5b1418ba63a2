"""How text is split before byte-level merging, by the names that GGUF files use.

The rules are those of the tokenizers that the names stand for, as their makers published them in tokenizer.json form.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["PRE_TYPES", "PreType"]


@dataclass(frozen=True, slots=True)
class PreType:
    """One rule, in the JSON form of the `tokenizers` library."""

    pre_tokenizer: Mapping[str, Any]
    normalizer: Mapping[str, Any] | None = None
    ignore_merges: bool = False
    """A word that is a token as a whole is that token, whatever its merges give."""
    adds_bos: bool = False
    """Adds beginning of text where the file does not say."""


_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _byte_level(*, use_regex: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def _split(pattern: str) -> dict[str, Any]:
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [split, _byte_level(use_regex=False)]}


_GPT2 = PreType(_byte_level(use_regex=True))
_SMOLLM = PreType(
    {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, _byte_level(use_regex=True)]}
)
_LLAMA3 = PreType(_split(_WORDS + r"\p{N}{1,3}" + _REST), ignore_merges=True, adds_bos=True)
_QWEN2 = PreType(_split(_WORDS + r"\p{N}" + _REST), normalizer={"type": "NFC"})

PRE_TYPES: Mapping[str, PreType] = {
    "gpt-2": _GPT2,
    "smollm": _SMOLLM,
    "llama-bpe": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama3": _LLAMA3,
    "qwen2": _QWEN2,
}
"""The value of `tokenizer.ggml.pre` to its rule."""
