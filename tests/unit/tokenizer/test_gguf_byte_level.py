"""Byte-level tokenizers from GGUF metadata: real vectors, published patterns, special tokens, refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import Qwen2Tokenizer
from transformers.models.gpt2 import GPT2Tokenizer

from pagemill_common.tokenisation import ModelTokenizer, TokenizerError
from pagemill_replica.tokenizer import bundle_from_metadata

Metadata = Callable[[str], dict[str, Any]]
VECTORS = Path(__file__).parents[2] / "vectors" / "smollm2_tokenizer.jsonl"
ROWS = [json.loads(line) for line in VECTORS.read_text(encoding="utf-8").splitlines()]
# As published by the models' makers.
WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
PATTERNS = {
    "gpt-2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "llama-bpe": WORDS + r"\p{N}{1,3}" + REST,
    "qwen2": WORDS + r"\p{N}" + REST,
}
TEXTS = [
    "It's 2024 and we've 12345 reasons; DON'T they'LL know?",
    "a  b   c\n\n  d \t e\r\n\r\nf   ",
    "x=1;y_2+=3.14159 // ½ ²³ ١٢٣",
    "Привет мир — 你好世界 🙂🙃 café",
    "   \n\n   ",
    "...!!!\n???",
]


def tokenizer_of(metadata: dict[str, Any]) -> ModelTokenizer:
    return ModelTokenizer.from_bundle(bundle_from_metadata(metadata))


@pytest.mark.model
def test_all_vectors_of_llama_cpp_match(smollm2: ModelTokenizer) -> None:
    assert len(ROWS) == 149
    for row in ROWS:
        ids = smollm2.encode(row["text"], add_special_tokens=False, parse_special=row["parse_special"])
        assert ids == row["ids"], row["text"]


@pytest.mark.model
def test_vectors_decode_to_their_text_as_the_library_decodes(smollm2: ModelTokenizer) -> None:
    library = Tokenizer.from_str(smollm2.bundle.tokenizer_json.decode())
    for row in ROWS:
        text = smollm2.decode(row["ids"], skip_special_tokens=False)
        assert text == row["text"]
        for skip in (False, True):
            expected = library.decode(row["ids"], skip_special_tokens=skip)
            assert smollm2.decode(row["ids"], skip_special_tokens=skip) == expected


@pytest.mark.model
def test_smollm2_bundle(smollm2: ModelTokenizer) -> None:
    bundle = smollm2.bundle
    assert (bundle.bos_token, bundle.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert not bundle.add_bos
    assert not bundle.add_eos
    # <|im_end|> by the metadata, <|endoftext|> by its name.
    assert smollm2.end_of_text_ids == (0, 2)
    assert smollm2.vocab_size == 49152
    rendered = smollm2.render_chat([{"role": "user", "content": "hi"}])
    assert rendered.startswith("<|im_start|>system\nYou are a helpful AI assistant")
    assert rendered.endswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.parametrize("pre", sorted(PATTERNS))
@settings(max_examples=150, deadline=None)
@given(text=st.text(alphabet=st.characters(codec="utf-8", exclude_categories=["Cn", "Co"]), max_size=40))
def test_text_is_split_as_the_published_pattern_splits(pre: str, text: str, byte_level: Metadata) -> None:
    library = Tokenizer.from_str(bundle_from_metadata(byte_level(pre)).tokenizer_json.decode())
    if library.normalizer is not None:
        text = library.normalizer.normalize_str(text)
    assert library.pre_tokenizer is not None
    spans = [text[start:end] for _, (start, end) in library.pre_tokenizer.pre_tokenize_str(text)]
    expected = [m.group() for m in regex.finditer(PATTERNS[pre], text, regex.V0)]
    if not _engines_differ(text):
        assert spans == expected


def _engines_differ(text: str) -> bool:
    # The separators U+001C to U+001F as white space; long s and Kelvin sign under (?i:).
    return any(char in "\x1c\x1d\x1e\x1f\u017f\u212a" for char in text)


@pytest.mark.parametrize("pre", ["gpt-2", "qwen2"])
@pytest.mark.parametrize("text", TEXTS)
def test_ids_equal_transformers(pre: str, text: str, byte_level: Metadata) -> None:
    metadata = byte_level(pre)
    plain = len(metadata["tokenizer.ggml.tokens"]) - 7
    vocab = {token: i for i, token in enumerate(metadata["tokenizer.ggml.tokens"][:plain])}
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    kind = {"gpt-2": GPT2Tokenizer, "qwen2": Qwen2Tokenizer}[pre]
    oracle = kind(vocab=vocab, merges=merges)
    assert tokenizer_of(metadata).encode(text) == oracle.encode(text, add_special_tokens=False)


@pytest.mark.parametrize(
    ("pre", "groups"),
    [("llama-bpe", ["123", "45"]), ("qwen2", list("12345")), ("smollm", list("12345")), ("gpt-2", ["12345"])],
)
def test_digits_are_grouped_by_pre_type(pre: str, groups: list[str], byte_level: Metadata) -> None:
    library = Tokenizer.from_str(bundle_from_metadata(byte_level(pre)).tokenizer_json.decode())
    assert library.pre_tokenizer is not None
    assert [piece for piece, _ in library.pre_tokenizer.pre_tokenize_str("12345")] == groups


def test_llama_bpe_takes_a_whole_word_before_its_merges(byte_level: Metadata) -> None:
    metadata = byte_level("llama-bpe")
    # A token that no merge leads to.
    metadata["tokenizer.ggml.tokens"] = [*metadata["tokenizer.ggml.tokens"], "xyzzy"]
    metadata["tokenizer.ggml.token_type"] = [*metadata["tokenizer.ggml.token_type"], 1]
    assert tokenizer_of(metadata).encode("xyzzy", add_special_tokens=False) == [
        len(metadata["tokenizer.ggml.tokens"]) - 1
    ]
    assert len(tokenizer_of({**metadata, "tokenizer.ggml.pre": "qwen2"}).encode("xyzzy", add_special_tokens=False)) > 1


def test_special_tokens_in_text(byte_level: Metadata) -> None:
    tokenizer = tokenizer_of(byte_level("gpt-2"))
    tokens = byte_level("gpt-2")["tokenizer.ggml.tokens"]
    im_end, tool, pad = (tokens.index(t) for t in ("<|im_end|>", "<tool>", "[PAD0]"))
    parsed = tokenizer.encode("a<|im_end|><tool>[PAD0]")
    assert im_end in parsed
    assert tool in parsed
    assert pad not in parsed
    literal = tokenizer.encode("a<|im_end|><tool>[PAD0]", parse_special=False)
    assert im_end not in literal
    # User-defined tokens are ordinary text with an id of their own, control tokens are not.
    assert tool in literal
    assert tokenizer.decode(parsed) == "a<tool>[PAD0]"
    assert tokenizer.decode(parsed, skip_special_tokens=False) == "a<|im_end|><tool>[PAD0]"
    assert tokenizer.decode(literal) == "a<|im_end|><tool>[PAD0]"
    assert tokenizer.is_special(im_end)
    assert not tokenizer.is_special(tool)


def test_unused_tokens_stand_for_nothing(byte_level: Metadata) -> None:
    metadata = byte_level("gpt-2")
    pad = metadata["tokenizer.ggml.tokens"].index("[PAD0]")
    tokenizer = tokenizer_of(metadata)
    assert tokenizer.decode([pad]) == ""
    assert tokenizer.token_bytes(pad) == b""


@pytest.mark.parametrize(
    ("pre", "flag", "adds"),
    [("llama-bpe", None, True), ("gpt-2", None, False), ("gpt-2", True, True), ("llama-bpe", False, False)],
)
def test_beginning_of_text_is_added_once(pre: str, flag: bool | None, adds: bool, byte_level: Metadata) -> None:
    metadata = byte_level(pre)
    if flag is not None:
        metadata["tokenizer.ggml.add_bos_token"] = flag
    tokenizer = tokenizer_of(metadata)
    bos = metadata["tokenizer.ggml.bos_token_id"]
    assert tokenizer.encode("hi").count(bos) == int(adds)
    assert tokenizer.encode("<|begin|>hi").count(bos) == 1
    assert tokenizer.encode("hi", add_special_tokens=False).count(bos) == 0


def test_end_of_text_is_added_once_where_the_file_says_so(byte_level: Metadata) -> None:
    tokenizer = tokenizer_of({**byte_level("gpt-2"), "tokenizer.ggml.add_eos_token": True})
    eos = tokenizer.bundle.eos_token_id
    assert tokenizer.encode("hi")[-1] == eos
    assert tokenizer.encode("hi<|end_of_text|>").count(eos) == 1


def test_a_chat_gets_no_second_beginning_of_text(byte_level: Metadata) -> None:
    metadata = {**byte_level("llama-bpe"), "tokenizer.chat_template": "{{ bos_token }}{{ messages[0].content }}"}
    tokenizer = tokenizer_of(metadata)
    bos = metadata["tokenizer.ggml.bos_token_id"]
    assert tokenizer.encode_chat([{"role": "user", "content": "hi"}]).count(bos) == 1
    silent = tokenizer_of({**metadata, "tokenizer.chat_template": "{{ messages[0].content }}"})
    assert silent.encode_chat([{"role": "user", "content": "hi"}]).count(bos) == 0


def test_ends_of_text_are_gathered(byte_level: Metadata) -> None:
    metadata = byte_level("gpt-2")
    tokens = metadata["tokenizer.ggml.tokens"]
    by_name = {tokens.index("<|end_of_text|>"), tokens.index("<|im_end|>")}
    assert set(tokenizer_of(metadata).end_of_text_ids) == by_name
    more = bundle_from_metadata({**metadata, "tokenizer.ggml.eot_token_id": 5, "tokenizer.ggml.eom_token_id": 6}, [7])
    assert set(more.end_of_text_ids) == by_name | {5, 6, 7}
    # A token that merely spells such a name is ordinary text.
    kinds = list(metadata["tokenizer.ggml.token_type"])
    kinds[tokens.index("<|im_end|>")] = 1
    plain = bundle_from_metadata({**metadata, "tokenizer.ggml.token_type": kinds})
    assert tokens.index("<|im_end|>") not in plain.end_of_text_ids


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"tokenizer.ggml.model": "t5"}, "'t5'"),
        ({"tokenizer.ggml.model": None}, "missing"),
        ({"tokenizer.ggml.pre": "tekken"}, "'tekken'"),
        ({"tokenizer.ggml.pre": "default"}, "'default'"),
        ({"tokenizer.ggml.pre": None}, "missing"),
        ({"tokenizer.ggml.pre": ["qwen2"]}, "qwen2"),
        ({"tokenizer.ggml.tokens": []}, "tokens is missing"),
        ({"tokenizer.ggml.token_type": [1, 2]}, "token_type"),
        ({"tokenizer.ggml.merges": []}, "merges is missing"),
        ({"tokenizer.ggml.merges": ["zz qq"]}, "'zz qq'"),
        ({"tokenizer.ggml.merges": ["abc"]}, "'abc'"),
        ({"tokenizer.ggml.bos_token_id": 10**6}, "bos_token_id"),
        ({"tokenizer.ggml.bos_token_id": None, "tokenizer.ggml.add_bos_token": True}, "add_bos_token"),
    ],
)
def test_a_file_that_cannot_be_understood_is_refused(change: dict[str, Any], named: str, byte_level: Metadata) -> None:
    metadata = {k: v for k, v in {**byte_level("gpt-2"), **change}.items() if v is not None}
    with pytest.raises(TokenizerError, match=r"tokenizer\.ggml") as refused:
        bundle_from_metadata(metadata)
    assert named in str(refused.value)
    assert "\n" not in str(refused.value)


def test_alike_tokens_and_unknown_types_are_refused(byte_level: Metadata) -> None:
    metadata = byte_level("gpt-2")
    tokens = metadata["tokenizer.ggml.tokens"]
    with pytest.raises(TokenizerError, match="1 tokens twice"):
        bundle_from_metadata({**metadata, "tokenizer.ggml.tokens": [tokens[1], *tokens[1:]]})
    kinds = metadata["tokenizer.ggml.token_type"]
    with pytest.raises(TokenizerError, match="unknown kind"):
        bundle_from_metadata({**metadata, "tokenizer.ggml.token_type": [9, *kinds[1:]]})
