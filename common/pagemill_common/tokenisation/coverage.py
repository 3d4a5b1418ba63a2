"""The fewest tokens that a text can have, so that one that is far too long is refused without encoding it.

A tokenizer keeps every byte of a text unless one of its stages drops or shortens something. Stages are read from the
tokenizer.json; for one that is not known to keep everything there is no bound, and no guess either.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer

from pagemill_common.tokenisation.token_bytes import TokenBytes, byte_level_alphabet

__all__ = ["NFC_SHRINKS_BY", "Coverage"]

NFC_SHRINKS_BY = 4
"""Composing characters leaves at least one byte in so many; the worst, U+1FBE U+0308 U+0301 as U+0390, is 7 to 2."""


@dataclass(frozen=True, slots=True)
class Coverage:
    """What is sure of a tokenizer without running it."""

    longest: int
    """Most bytes of UTF-8 of a text that one token can stand for."""
    unknown: bytes = b""
    """Bytes that no token has: they may vanish."""

    @classmethod
    def of(cls, description: Mapping[str, Any], backend: Tokenizer, table: TokenBytes) -> Coverage | None:
        """None where the tokenizer sets no bound. `description` is the tokenizer.json of `backend`, `table` its tokens'
        bytes.
        """
        normalizer = description.get("normalizer")
        shrink = _shrink(normalizer)
        pre = list(_stages(description.get("pre_tokenizer"), "pretokenizers"))
        byte_level = any(stage.get("type") == "ByteLevel" for stage in pre)
        unknown = _unknown_bytes(description["model"], byte_level)
        if shrink is None or not all(map(_keeps_all, pre)) or unknown is None or (unknown and normalizer is not None):
            return None
        longest = _longest(backend, table, byte_level)
        return None if longest is None else cls(longest * shrink, unknown)

    def fewest_tokens(self, text: str) -> int:
        """No encoding of the text has fewer tokens."""
        raw = text.encode("utf-8", "surrogatepass")
        return -(-len(raw.translate(None, self.unknown)) // self.longest)


def _longest(backend: Tokenizer, table: TokenBytes, byte_level: bool) -> int | None:
    vocabulary: Mapping[str, int] = backend.get_vocab(with_added_tokens=False)
    sizes = [
        len(table.plain[token_id]) if byte_level else max(len(token.encode()), len(table.plain[token_id]))
        for token, token_id in vocabulary.items()
    ]
    for added in backend.get_added_tokens_decoder().values():
        if added.lstrip or added.rstrip:  # takes in any number of blanks
            return None
        sizes.append(len(added.content.encode()))
        if added.normalized and backend.normalizer is not None:
            sizes.append(len(backend.normalizer.normalize_str(added.content).encode()))
    return max(sizes, default=0) or None


def _stages(stage: Mapping[str, Any] | None, parts: str) -> Iterator[Mapping[str, Any]]:
    if stage is None:
        return
    if stage.get("type") != "Sequence":
        yield stage
        return
    for part in stage.get(parts, []):
        yield from _stages(part, parts)


def _shrink(normalizer: Mapping[str, Any] | None) -> int | None:
    """To what share of its bytes, one in so many, a text can shrink; None: to nothing."""
    total = 1
    for stage in _stages(normalizer, "normalizers"):
        match stage.get("type"):
            case "Prepend":
                continue
            case "NFC":
                total *= NFC_SHRINKS_BY
            case "Replace":
                old = stage.get("pattern", {}).get("String")
                new = stage.get("content")
                if not old or not new:
                    return None
                total *= -(-len(old.encode()) // len(new.encode()))
            case _:
                return None
    return total


def _keeps_all(pre_tokenizer: Mapping[str, Any]) -> bool:
    kind = pre_tokenizer.get("type")
    return kind in ("ByteLevel", "Digits", "Metaspace") or (
        kind == "Split" and pre_tokenizer.get("behavior") not in (None, "Removed")
    )


def _unknown_bytes(model: Mapping[str, Any], byte_level: bool) -> bytes | None:
    """Bytes without a token; None where what is unknown is not told by bytes."""
    if model.get("type") != "BPE" or model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
        return None
    vocabulary = model.get("vocab", {})
    if byte_level:
        return bytes(byte for char, byte in byte_level_alphabet().items() if char not in vocabulary)
    every = bool(model.get("byte_fallback")) and all(f"<0x{byte:02X}>" in vocabulary for byte in range(256))
    return b"" if every else None
