"""How much of a text one token can stand for, so that a text far too long is refused without encoding it.

A tokenizer keeps every byte of a text unless one of its stages drops or shortens something. Stages are read from the
tokenizer.json; for one that is not known to keep everything there is no bound, and no guess either.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tokenizers import Tokenizer

from pagemill_common.tokenisation.token_bytes import TokenBytes, byte_level_alphabet

__all__ = ["NFC_SHRINKS_BY", "longest_token_bytes"]

NFC_SHRINKS_BY = 4
"""Composing characters leaves at least one byte in so many; the worst, U+1FBE U+0308 U+0301 as U+0390, is 7 to 2."""


def longest_token_bytes(description: Mapping[str, Any], backend: Tokenizer, table: TokenBytes) -> int | None:
    """Most bytes of UTF-8 of a text that one token can stand for; None where the tokenizer sets no bound.

    A text of more than `n` times as many bytes therefore has more than `n` tokens. `description` is the tokenizer.json
    of `backend`, `table` its tokens' bytes.
    """
    shrink = _shrink(description.get("normalizer"))
    pre = list(_stages(description.get("pre_tokenizer"), "pretokenizers"))
    byte_level = any(stage.get("type") == "ByteLevel" for stage in pre)
    if shrink is None or not all(map(_keeps_all, pre)) or not _knows_every_byte(description["model"], byte_level):
        return None
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
    longest = max(sizes, default=0) * shrink
    return longest or None


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


def _knows_every_byte(model: Mapping[str, Any], byte_level: bool) -> bool:
    """Nothing is dropped or drawn together as unknown."""
    if model.get("type") != "BPE" or model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
        return False
    vocabulary = model.get("vocab", {})
    if byte_level:
        return all(char in vocabulary for char in byte_level_alphabet())
    return bool(model.get("byte_fallback")) and all(f"<0x{byte:02X}>" in vocabulary for byte in range(256))
