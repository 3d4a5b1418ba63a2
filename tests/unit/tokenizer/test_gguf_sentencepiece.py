"""SentencePiece tokenizers from GGUF metadata, against SentencePiece's own algorithm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from pagemill_common.tokenisation import ModelTokenizer, TokenizerError
from pagemill_replica.tokenizer import bundle_from_metadata

Metadata = Callable[..., dict[str, Any]]
ALPHABET = "the quickbrownfxjmpsvlazydg.,'0123456789\n\tЖ世🙂é▁<>/s"


def merged_by_score(text: str, metadata: dict[str, Any], *, prefix: bool = True) -> list[int]:
    """SentencePiece's BPE: merge the neighbours whose union scores highest, the leftmost first; the rest is bytes."""
    tokens, kinds = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    scores = metadata["tokenizer.ggml.scores"]
    pieces = {t: i for i, (t, k) in enumerate(zip(tokens, kinds, strict=True)) if k in (1, 4)}
    symbols = list((" " + text if prefix and text else text).replace(" ", "▁"))
    while True:
        best: tuple[float, int] | None = None
        for at in range(len(symbols) - 1):
            index = pieces.get(symbols[at] + symbols[at + 1])
            if index is not None and (best is None or scores[index] > best[0]):
                best = (scores[index], at)
        if best is None:
            break
        symbols[best[1] : best[1] + 2] = ["".join(symbols[best[1] : best[1] + 2])]
    ids: list[int] = []
    for symbol in symbols:
        ids.extend([pieces[symbol]] if symbol in pieces else [3 + byte for byte in symbol.encode()])
    return ids


@settings(max_examples=300, deadline=None)
@given(text=st.text(alphabet=ALPHABET, max_size=30))
def test_merges_by_score(text: str, sentencepiece: Metadata) -> None:
    metadata = sentencepiece()
    tokenizer = _shared(metadata)
    assert tokenizer.encode(text, add_special_tokens=False, parse_special=False) == merged_by_score(text, metadata)


_built: list[ModelTokenizer] = []


def _shared(metadata: dict[str, Any]) -> ModelTokenizer:
    if not _built:
        _built.append(ModelTokenizer.from_bundle(bundle_from_metadata(metadata)))
    return _built[0]


def test_spelled_out_control_tokens_are_never_merged_into(sentencepiece: Metadata) -> None:
    metadata = sentencepiece()
    ids = _shared(metadata).encode("</s>", add_special_tokens=False, parse_special=False)
    assert 2 not in ids
    assert _shared(metadata).encode("</s>", add_special_tokens=False) == [2]


def test_bos_is_added_once_and_a_space_goes_in_front(sentencepiece: Metadata) -> None:
    tokenizer = _shared(sentencepiece())
    assert tokenizer.encode("the")[0] == 1
    assert tokenizer.encode("<s>the") == tokenizer.encode("the")
    assert tokenizer.encode("") == [1]
    assert tokenizer.token_bytes(tokenizer.encode("the")[1]).startswith(b" ")


def test_without_a_space_prefix_text_comes_back_as_it_is(sentencepiece: Metadata) -> None:
    metadata = sentencepiece(**{"tokenizer.ggml.add_space_prefix": False})
    tokenizer = ModelTokenizer.from_bundle(bundle_from_metadata(metadata))
    assert tokenizer.encode("the", add_special_tokens=False) == merged_by_score("the", metadata, prefix=False)
    assert tokenizer.decode(tokenizer.encode(" the")) == " the"


@settings(max_examples=200, deadline=None)
@given(text=st.text(alphabet=st.characters(codec="utf-8", exclude_characters="▁"), max_size=30))
def test_text_comes_back_and_decodes_as_the_library_decodes(text: str, sentencepiece: Metadata) -> None:
    tokenizer = _shared(sentencepiece())
    ids = tokenizer.encode(text, parse_special=False)
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode(ids) == Tokenizer.from_str(tokenizer.bundle.tokenizer_json.decode()).decode(ids)


def test_ends_of_text_and_defaults(sentencepiece: Metadata) -> None:
    metadata = sentencepiece()
    for key in ("bos_token_id", "eos_token_id", "unknown_token_id"):
        del metadata[f"tokenizer.ggml.{key}"]
    bundle = bundle_from_metadata(metadata)
    assert (bundle.bos_token, bundle.eos_token, bundle.add_bos, bundle.add_eos) == ("<s>", "</s>", True, False)
    assert list(bundle.end_of_text_ids) == [2, len(metadata["tokenizer.ggml.tokens"]) - 1]


def test_files_without_scores_or_bytes_are_refused(sentencepiece: Metadata) -> None:
    metadata = sentencepiece()
    with pytest.raises(TokenizerError, match="scores"):
        bundle_from_metadata({**metadata, "tokenizer.ggml.scores": [0.0]})
    tokens = list(metadata["tokenizer.ggml.tokens"])
    tokens[3] = "zzz"
    with pytest.raises(TokenizerError, match="<0x00>"):
        bundle_from_metadata({**metadata, "tokenizer.ggml.tokens": tokens})
