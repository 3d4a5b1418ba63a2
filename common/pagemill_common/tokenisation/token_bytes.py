"""What each token id stands for, in bytes, read from a tokenizer's decoder.

A tokenizer of the `tokenizers` library decodes a whole list at once. Streaming needs the share of every single
token, in bytes, because a character may span tokens. For the two families of decoders that language models use,
that share is a fixed table:

- *byte level*: each character of a token stands for one byte;
- *SentencePiece*: `▁` is a space, `<0xE2>` is a byte, anything else is itself; the first space of a text may be
  dropped.

Any other decoder (word pieces, clean-ups that look at neighbours) is refused with a TokenizerError: no table could
be exact.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pagemill_common.tokenisation.errors import TokenizerError

__all__ = ["TokenBytes", "byte_level_alphabet"]

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_METASPACE = "▁"


def byte_level_alphabet() -> dict[str, int]:
    """Character to byte, for all 256 bytes, as GPT-2 defined it: printable Latin-1 stands for itself, the rest from
    U+0100 on.
    """
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [byte for byte in range(256) if byte not in set(plain)]
    return {chr(byte): byte for byte in plain} | {chr(0x100 + i): byte for i, byte in enumerate(moved)}


@dataclass(frozen=True, slots=True)
class TokenBytes:
    """Bytes of every token id.

    Ids at or beyond the end, and ids that name no token, stand for nothing. The text of a list is the UTF-8
    decoding of its joined bytes, malformed parts replaced by U+FFFD, less up to `strip_count` leading `strip_char`.
    """

    plain: tuple[bytes, ...]
    """By id."""
    first: tuple[bytes, ...]
    """By id, for the first token of a text. The same object as `plain` where the place makes no difference."""
    special: frozenset[int]
    """Ids of special tokens."""
    strip_char: str = " "
    strip_count: int = 0

    @classmethod
    def of(cls, decoder: Mapping[str, Any] | None, tokens: Sequence[str | None], special: frozenset[int]) -> TokenBytes:
        """Reads the `decoder` object of a tokenizer.json; `tokens` are texts by id, None where an id names no token.

        Raises TokenizerError for a decoder without an exact table.
        """
        if decoder is None:
            raise TokenizerError("the tokenizer has no decoder")
        stages = _flatten(decoder)
        kinds = [str(stage.get("type")) for stage in stages]
        if kinds == ["ByteLevel"]:
            table = _byte_level(tokens)
            return cls(table, table, special)
        if kinds == ["Metaspace"]:
            return _metaspace(stages[0], tokens, special)
        return _sentencepiece(stages, kinds, tokens, special)


def _flatten(decoder: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    if decoder.get("type") != "Sequence":
        return [decoder]
    return [stage for part in decoder.get("decoders", []) for stage in _flatten(part)]


def _byte_level(tokens: Sequence[str | None]) -> tuple[bytes, ...]:
    alphabet = byte_level_alphabet()

    def convert(token: str | None) -> bytes:
        if token is None:
            return b""
        try:
            return bytes([alphabet[char] for char in token])
        except KeyError:  # an added token outside the alphabet stands for its own text
            return token.encode()

    return tuple(map(convert, tokens))


def _metaspace(stage: Mapping[str, Any], tokens: Sequence[str | None], special: frozenset[int]) -> TokenBytes:
    mark = str(stage.get("replacement", _METASPACE))
    plain = tuple((token or "").replace(mark, " ").encode() for token in tokens)
    scheme = stage.get("prepend_scheme", "never" if stage.get("add_prefix_space") is False else "always")
    if scheme == "never":
        return TokenBytes(plain, plain, special)
    return TokenBytes(plain, tuple((token or "").replace(mark, "").encode() for token in tokens), special)


def _sentencepiece(
    stages: Sequence[Mapping[str, Any]], kinds: Sequence[str], tokens: Sequence[str | None], special: frozenset[int]
) -> TokenBytes:
    """Replace* ByteFallback? Fuse? Strip?, in that order; Strip only at the start and after Fuse."""
    order = {"Replace": 0, "ByteFallback": 1, "Fuse": 2, "Strip": 3}
    ranks = [order.get(kind, -1) for kind in kinds]
    once = all(kinds.count(kind) <= 1 for kind in ("ByteFallback", "Fuse", "Strip"))
    if not kinds or -1 in ranks or ranks != sorted(ranks) or not once or ("Strip" in kinds and "Fuse" not in kinds):
        raise TokenizerError(f"a decoder of kind {' + '.join(kinds) or 'nothing'} is not supported")
    replacements = [_replacement(stage) for stage, kind in zip(stages, kinds, strict=True) if kind == "Replace"]
    fallback = "ByteFallback" in kinds

    def convert(token: str | None) -> bytes:
        text = token or ""
        for old, new in replacements:
            text = text.replace(old, new)
        match = _BYTE_TOKEN.fullmatch(text) if fallback else None
        return bytes([int(match[1], 16)]) if match else text.encode()

    table = tuple(map(convert, tokens))
    strip: Mapping[str, Any] = stages[-1] if kinds[-1] == "Strip" else {"content": " ", "start": 0, "stop": 0}
    if strip.get("stop"):
        raise TokenizerError("a decoder that strips the end of a text is not supported")
    return TokenBytes(table, table, special, str(strip["content"]), int(strip["start"]))


def _replacement(stage: Mapping[str, Any]) -> tuple[str, str]:
    pattern = stage.get("pattern", {})
    if "String" not in pattern:
        raise TokenizerError("a decoder that replaces by a regular expression is not supported")
    return str(pattern["String"]), str(stage.get("content", ""))
