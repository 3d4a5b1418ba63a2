"""Tokens and their types in the metadata of a GGUF file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Any

from pagemill_common.tokenisation import TokenizerError

__all__ = ["TokenType", "Vocabulary", "read_flag", "read_id", "read_vocabulary"]

_KEY = "tokenizer.ggml."


class TokenType(IntEnum):
    """What a token is for, numbered as in GGUF files."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


_SPECIAL = (TokenType.CONTROL, TokenType.UNKNOWN)


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of a file.

    Control and unknown tokens are special: found in text where special tokens are parsed, left out of decoded text.
    User-defined tokens are found in any text and shown. Unused ones stand for nothing: no text gives them and they
    give no text.
    """

    tokens: Sequence[str]
    types: Sequence[TokenType]

    @property
    def size(self) -> int:
        """Number of ids, unused ones included."""
        return len(self.tokens)

    @cached_property
    def ids(self) -> dict[str, int]:
        """Text to id, of all but unused tokens."""
        return {
            token: index
            for index, (token, kind) in enumerate(zip(self.tokens, self.types, strict=True))
            if kind is not TokenType.UNUSED
        }

    def text(self, token_id: int) -> str:
        """The text of a token."""
        return self.tokens[token_id]

    def special_ids(self) -> dict[str, int]:
        """Text to id, of special tokens."""
        return {token: index for token, index in self.ids.items() if self.types[index] in _SPECIAL}

    def added_tokens(self) -> list[dict[str, Any]]:
        """Entries of tokenizer.json for tokens that are looked for in the raw text, before it is split."""
        found = (*_SPECIAL, TokenType.USER_DEFINED)
        flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
        return [
            {"id": index, "content": token, **flags, "special": self.types[index] in _SPECIAL}
            for token, index in self.ids.items()
            if self.types[index] in found and token
        ]


def read_vocabulary(metadata: Mapping[str, Any]) -> Vocabulary:
    """Tokens and types. Raises TokenizerError where they are missing, of different length, or where two used tokens
    are alike.
    """
    tokens, kinds = metadata.get(_KEY + "tokens"), metadata.get(_KEY + "token_type")
    if not isinstance(tokens, Sequence) or not tokens:
        raise TokenizerError("tokenizer.ggml.tokens is missing")
    if not isinstance(kinds, Sequence) or len(kinds) != len(tokens):
        raise TokenizerError("tokenizer.ggml.token_type is missing or has another length than the tokens")
    try:
        vocabulary = Vocabulary([str(token) for token in tokens], [TokenType(kind) for kind in kinds])
    except ValueError as error:
        raise TokenizerError(f"tokenizer.ggml.token_type is of an unknown kind: {error}") from None
    used = sum(kind is not TokenType.UNUSED for kind in vocabulary.types)
    if len(vocabulary.ids) != used:
        raise TokenizerError(f"tokenizer.ggml.tokens holds {used - len(vocabulary.ids)} tokens twice")
    return vocabulary


def read_id(metadata: Mapping[str, Any], key: str, size: int) -> int | None:
    """A token id such as `bos_token_id`; None where the file says nothing. Raises TokenizerError for one outside
    [0, size).
    """
    value = metadata.get(_KEY + key)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < size:
        raise TokenizerError(f"tokenizer.ggml.{key} is {value!r}; the file has {size} tokens")
    return value


def read_flag(metadata: Mapping[str, Any], key: str) -> bool | None:
    """A flag such as `add_bos_token`; None where the file says nothing."""
    value = metadata.get(_KEY + key)
    return None if value is None else bool(value)
