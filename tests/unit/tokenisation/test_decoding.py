"""Ids to text: whole, in pieces, and as the library does it."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from pagemill_common.tokenisation import Detokeniser, ModelTokenizer, TokenizerError

TEXT = st.text(alphabet=st.one_of(st.sampled_from("the. é🙂\n"), st.characters(codec="utf-8", exclude_characters="▁")))
IDS = st.lists(st.integers(0, 300), max_size=40)


def cut(ids: list[int], cuts: list[int]) -> list[list[int]]:
    places = sorted({min(c, len(ids)) for c in cuts} | {0, len(ids)})
    return [ids[a:b] for a, b in itertools.pairwise(places)]


@settings(max_examples=400, deadline=None)
@given(ids=IDS, cuts=st.lists(st.integers(0, 40), max_size=8), skip=st.booleans())
def test_pieces_join_to_the_whole_for_any_ids_and_cuts(
    tokenizer: ModelTokenizer, ids: list[int], cuts: list[int], skip: bool
) -> None:
    detokeniser = Detokeniser(tokenizer, skip_special_tokens=skip)
    parts = [detokeniser.push(group) for group in cut(ids, cuts)]
    assert sum(part.tokens_used for part in parts) == len(ids)
    joined = "".join(part.text for part in parts) + detokeniser.finish().text
    assert joined == tokenizer.decode(ids, skip_special_tokens=skip)


@settings(max_examples=300, deadline=None)
@given(text=TEXT)
def test_valid_text_decodes_as_the_library_decodes(tokenizer: ModelTokenizer, text: str) -> None:
    ids = tokenizer.encode(text, parse_special=False)
    library = Tokenizer.from_str(tokenizer.bundle.tokenizer_json.decode())
    assert tokenizer.decode(ids) == library.decode(ids)


@settings(max_examples=400, deadline=None)
@given(ids=IDS, skip=st.booleans())
def test_byte_level_decodes_any_ids_as_the_library_does(
    byte_tokenizer: ModelTokenizer, ids: list[int], skip: bool
) -> None:
    library = Tokenizer.from_str(byte_tokenizer.bundle.tokenizer_json.decode())
    assert byte_tokenizer.decode(ids, skip_special_tokens=skip) == library.decode(ids, skip_special_tokens=skip)


@settings(max_examples=200, deadline=None)
@given(text=TEXT)
def test_text_comes_back(byte_tokenizer: ModelTokenizer, text: str) -> None:
    assert byte_tokenizer.decode(byte_tokenizer.encode(text, parse_special=False)) == text


@settings(max_examples=200, deadline=None)
@given(text=TEXT)
def test_no_piece_ends_inside_a_character(byte_tokenizer: ModelTokenizer, text: str) -> None:
    detokeniser = Detokeniser(byte_tokenizer)
    shown = ""
    for token_id in byte_tokenizer.encode(text, parse_special=False):
        shown += detokeniser.push([token_id]).text
        assert text.startswith(shown)
        # What is missing is less than one character.
        rest = byte_tokenizer.decode(byte_tokenizer.encode(text, parse_special=False))[len(shown) :]
        assert text == shown + rest
    assert detokeniser.finish().text == ""
    assert shown == text


def test_a_character_comes_with_its_last_byte(byte_tokenizer: ModelTokenizer) -> None:
    ids = byte_tokenizer.encode("🙂")
    assert len(ids) == 2  # three bytes in one token, the last byte in another
    detokeniser = Detokeniser(byte_tokenizer)
    assert [detokeniser.push([i]).text for i in ids] == ["", "🙂"]


def test_output_that_begins_inside_a_character_shows_its_own_bytes_only(byte_tokenizer: ModelTokenizer) -> None:
    prompt_part, output_part = byte_tokenizer.encode("🙂")
    detokeniser = Detokeniser(byte_tokenizer)
    assert detokeniser.push([output_part, *byte_tokenizer.encode("he")]).text == "\ufffdhe"
    assert byte_tokenizer.decode([prompt_part]) == "\ufffd"


def test_an_unfinished_character_at_the_end_shows_as_one_replacement(byte_tokenizer: ModelTokenizer) -> None:
    detokeniser = Detokeniser(byte_tokenizer)
    assert detokeniser.push(byte_tokenizer.encode("he🙂")[:-1]).text == "he"
    assert detokeniser.finish().text == "\ufffd"


def test_the_first_space_of_sentencepiece(spm_tokenizer: ModelTokenizer) -> None:
    ids = spm_tokenizer.encode("the the")
    assert spm_tokenizer.token_bytes(ids[0]) == b" the"
    assert spm_tokenizer.decode(ids) == "the the"
    bos = spm_tokenizer.encode("<s>")[0]
    # A special token that is left out is no start of a text; one that is shown is.
    assert spm_tokenizer.decode([bos, *ids]) == "the the"
    assert spm_tokenizer.decode([bos, *ids], skip_special_tokens=False) == "<s> the the"
    continued = Detokeniser(spm_tokenizer, continues_text=True)
    assert continued.push(ids).text + continued.finish().text == " the the"


def test_ids_that_name_no_token_stand_for_nothing(tokenizer: ModelTokenizer) -> None:
    assert tokenizer.decode([10**6]) == ""
    assert tokenizer.token_bytes(10**6) == b""
    detokeniser = Detokeniser(tokenizer)
    assert detokeniser.push([10**6]).text == ""


def test_pieces_for_people(byte_tokenizer: ModelTokenizer) -> None:
    assert [byte_tokenizer.piece(i) for i in byte_tokenizer.encode(" the🙂")] == [" the", "\ufffd", "\ufffd"]
    assert byte_tokenizer.piece(byte_tokenizer.encode("<s>")[0]) == "<s>"


@pytest.mark.parametrize(
    "decoder",
    [
        None,
        {"type": "WordPiece", "prefix": "##", "cleanup": True},
        {"type": "BPEDecoder", "suffix": "</w>"},
        {"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": True},
        {"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "ByteFallback"}]},
        {"type": "Sequence", "decoders": [{"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        {"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 0, "stop": 1}]},
        {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"Regex": "a+"}, "content": " "}]},
        {"type": "Sequence", "decoders": []},
    ],
)
def test_decoders_without_an_exact_table_are_refused(decoder: Any, spm_description: Any, make_bundle: Any) -> None:
    with pytest.raises(TokenizerError):
        ModelTokenizer.from_bundle(make_bundle(spm_description(decoder=decoder)))


def test_a_bundle_that_is_no_tokenizer_is_refused(make_bundle: Any, spm_description: Any) -> None:
    bundle = make_bundle(spm_description())
    bundle.tokenizer_json = b"{}"
    with pytest.raises(TokenizerError, match="cannot be loaded"):
        ModelTokenizer.from_bundle(bundle)


def test_the_digest_is_that_of_the_serialised_bundle(make_bundle: Any, spm_description: Any) -> None:
    bundle = make_bundle(spm_description())
    first, second = ModelTokenizer.from_bundle(bundle), ModelTokenizer.from_bundle(bundle)
    assert first.digest == second.digest
    assert len(first.digest) == 32
    bundle.add_bos = True
    assert ModelTokenizer.from_bundle(bundle).digest != first.digest
