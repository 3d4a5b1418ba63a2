"""Tiny tokenizers of each kind of decoder."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tokenizers import pre_tokenizers

from pagemill.v1 import model_pb2
from pagemill_common.tokenisation import ModelTokenizer

SPECIAL = ["<s>", "</s>"]
SPM_DECODERS = [
    {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
    {"type": "ByteFallback"},
    {"type": "Fuse"},
    {"type": "Strip", "content": " ", "start": 1, "stop": 0},
]


def description(vocab: dict[str, int], merges: list[list[str]], **parts: Any) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    model = {"type": "BPE", "vocab": vocab, "merges": merges, **parts.pop("model", {})}
    added = [{"id": vocab[token], "content": token, **flags} for token in SPECIAL]
    return {"version": "1.0", "added_tokens": added, "model": model, **parts}


def byte_level() -> dict[str, Any]:
    """Every byte is a token; then parts of é, 🙂 and words, as merges that cut inside characters make them."""
    tokens = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [["Ã", "©"], ["ð", "Ł"], ["ðŁ", "Ļ"], ["h", "e"], ["Ġ", "t"], ["Ġt", "he"], ["Ċ", "Ċ"]]
    vocab = {token: i for i, token in enumerate([*tokens, *("".join(pair) for pair in merges), *SPECIAL])}
    stage = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return description(vocab, merges, pre_tokenizer=stage, decoder=stage)


def sentencepiece(**parts: Any) -> dict[str, Any]:
    tokens = [*SPECIAL, *(f"<0x{b:02X}>" for b in range(256)), "▁", "t", "h", "e", "é", "he", "▁t", "▁the", "▁▁", "."]
    vocab = {token: i for i, token in enumerate(tokens)}
    merges = [["h", "e"], ["▁", "t"], ["▁t", "he"], ["▁", "▁"]]
    model = {"byte_fallback": True, "unk_token": "<s>", "fuse_unk": True}
    normalizers = [{"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]
    sequence = {"type": "Sequence", "normalizers": normalizers}
    decoder = parts.pop("decoder", {"type": "Sequence", "decoders": SPM_DECODERS})
    return description(vocab, merges, model=model, normalizer=sequence, decoder=decoder)


def metaspace() -> dict[str, Any]:
    stage = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    return sentencepiece(decoder=stage)


def bundle_of(spec: dict[str, Any], **fields: Any) -> model_pb2.TokenizerBundle:
    ids = [spec["model"]["vocab"]["</s>"]]
    return model_pb2.TokenizerBundle(tokenizer_json=json.dumps(spec).encode(), end_of_text_ids=ids, **fields)


KINDS = {"byte level": byte_level, "sentencepiece": sentencepiece, "metaspace": metaspace}


@pytest.fixture(scope="session", params=sorted(KINDS))
def tokenizer(request: pytest.FixtureRequest) -> ModelTokenizer:
    """One of each kind."""
    return ModelTokenizer.from_bundle(bundle_of(KINDS[request.param]()))


@pytest.fixture(scope="session")
def byte_tokenizer() -> ModelTokenizer:
    return ModelTokenizer.from_bundle(bundle_of(byte_level()))


@pytest.fixture(scope="session")
def spm_tokenizer() -> ModelTokenizer:
    return ModelTokenizer.from_bundle(bundle_of(sentencepiece()))


@pytest.fixture(scope="session")
def spm_description() -> Any:
    """Builds the description of the SentencePiece kind, with another decoder."""
    return sentencepiece


@pytest.fixture(scope="session")
def make_bundle() -> Any:
    return bundle_of
