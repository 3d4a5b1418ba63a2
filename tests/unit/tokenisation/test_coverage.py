"""The fewest tokens of a text: never too many, and none where a stage may drop something."""

from __future__ import annotations

import json
import sys
import unicodedata
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagemill_common.tokenisation import ModelTokenizer
from pagemill_common.tokenisation.coverage import NFC_SHRINKS_BY

REMOVING = {"type": "Split", "pattern": {"String": "x"}, "behavior": "Removed", "invert": False}
SPACE_TO_MARK = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
PARTS = st.sampled_from(
    ["<s>", "</s>", "the", " the", "▁the", "▁", "  ", "é", "🙂", "\u1fbe\u0308\u0301", "\u212b", "\n\n"]
)


def changed(make: Any, tokenizer: ModelTokenizer, change: Callable[[dict[str, Any]], Any]) -> ModelTokenizer:
    """The tokenizer with a change to its description."""
    description = json.loads(tokenizer.bundle.tokenizer_json)
    change(description)
    return ModelTokenizer.from_bundle(make(description))


@settings(max_examples=300, deadline=None)
@given(text=st.lists(st.one_of(PARTS, st.characters(codec="utf-8"))).map("".join), composing=st.booleans())
def test_no_text_has_fewer_tokens_than_is_said(
    tokenizer: ModelTokenizer, make_bundle: Any, text: str, composing: bool
) -> None:
    if composing and tokenizer.byte_table.plain is tokenizer.byte_table.first:
        tokenizer = changed(make_bundle, tokenizer, lambda made: made.update(normalizer={"type": "NFC"}))
    assert min(len(text), 1) <= tokenizer.fewest_tokens(text) <= len(tokenizer.encode(text))


def test_the_bound_is_that_of_the_longest_token(byte_tokenizer: ModelTokenizer, spm_tokenizer: ModelTokenizer) -> None:
    assert [byte_tokenizer.fewest_tokens("x" * size) for size in (0, 1, 4, 5)] == [0, 1, 1, 2]
    # Three bytes of a mark that a caller may have written out, and three letters. The byte tokens' names are as long.
    assert [spm_tokenizer.fewest_tokens("x" * size) for size in (6, 7)] == [1, 2]


def test_bytes_without_a_token_do_not_count(byte_tokenizer: ModelTokenizer, make_bundle: Any) -> None:
    tokenizer = changed(make_bundle, byte_tokenizer, lambda made: made["model"]["vocab"].pop("a"))
    for text in ("a" * 100, "xaaaay" * 10, "</s>" + "a" * 9):
        assert tokenizer.fewest_tokens(text) <= len(tokenizer.encode(text))
    assert tokenizer.fewest_tokens("a" * 100) == 0
    assert tokenizer.fewest_tokens("xaaaay" * 10) == 5


def test_composing_shrinks_no_text_by_more_than_the_bound() -> None:
    decomposing = [char for char in map(chr, range(sys.maxunicode + 1)) if not unicodedata.is_normalized("NFD", char)]
    parts = {char: unicodedata.normalize("NFD", char) for char in decomposing if not "\ud800" <= char <= "\udfff"}
    widest: dict[str, int] = {}
    for char, part in parts.items():
        for piece in part:
            widest.setdefault(piece, len(piece.encode()))
        if len(part) == 1:
            widest[part] = max(widest[part], len(char.encode()))

    def bytes_before(part: str) -> int:
        return sum(widest[piece] for piece in part)

    assert all(len(char.encode()) <= bytes_before(part) for char, part in parts.items())
    composed = {char: part for char, part in parts.items() if unicodedata.is_normalized("NFC", char)}
    left_alone = {piece: piece for piece in widest if unicodedata.is_normalized("NFC", piece)}
    ratios = [bytes_before(part) / len(char.encode()) for char, part in {**composed, **left_alone}.items()]
    assert 3 < max(ratios) <= NFC_SHRINKS_BY


DROPPING: dict[str, Callable[[dict[str, Any]], Any]] = {
    "blanks at an end": lambda made: made.update(normalizer={"type": "Strip", "strip_left": True, "strip_right": True}),
    "blanks beside a token": lambda made: made["added_tokens"][0].update(lstrip=True),
    "blanks between words": lambda made: made.update(
        pre_tokenizer={"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, made["pre_tokenizer"]]}
    ),
    "what a pattern matches": lambda made: made.update(
        pre_tokenizer={"type": "Sequence", "pretokenizers": [REMOVING, made["pre_tokenizer"]]}
    ),
    "a character": lambda made: made.update(normalizer={**SPACE_TO_MARK, "content": ""}),
    "unknown bytes, after composing": lambda made: (
        made["model"]["vocab"].pop("a"),
        made.update(normalizer={"type": "NFC"}),
    ),
    "accents, among others": lambda made: made.update(
        normalizer={"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "StripAccents"}]}
    ),
}


@pytest.mark.parametrize("what", sorted(DROPPING))
def test_a_tokenizer_that_drops_something_has_no_bound(
    what: str, byte_tokenizer: ModelTokenizer, make_bundle: Any
) -> None:
    assert changed(make_bundle, byte_tokenizer, DROPPING[what]).fewest_tokens("x" * 1000) == 0


def test_shrinking_stages_multiply(byte_tokenizer: ModelTokenizer, make_bundle: Any) -> None:
    halve = {"type": "Replace", "pattern": {"String": "abcdef"}, "content": "xyz"}
    both = {"type": "Sequence", "normalizers": [halve, {"type": "NFC"}]}
    tokenizer = changed(make_bundle, byte_tokenizer, lambda made: made.update(normalizer=both))
    assert tokenizer.fewest_tokens("x" * (10 * 4 * 2 * NFC_SHRINKS_BY)) == 10
