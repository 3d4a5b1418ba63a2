"""SentencePiece's BPE (Llama 2, Mistral) in the JSON form of the `tokenizers` library.

SentencePiece merges, again and again, the neighbours whose union is the piece with the highest score, the leftmost
first. As merge rules that is one rule for each way to cut a piece in two pieces, ranked by the piece's score. Both
give the same tokens where scores differ; among pieces of equal score the rules go by rank where SentencePiece goes
by place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pagemill_common.tokenisation import TokenizerError
from pagemill_replica.tokenizer.gguf_vocabulary import TokenType, Vocabulary

__all__ = ["byte_fallback_model", "sentencepiece_parts"]

_MARK = "▁"
_MERGED = (TokenType.NORMAL, TokenType.USER_DEFINED)


def sentencepiece_parts(*, space_prefix: bool) -> dict[str, Any]:
    """Normaliser, splitting (none) and decoder.

    `space_prefix`: a text, and every part of it that follows a special token, gets a space in front; decoding drops
    the first.
    """
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": _MARK}
    before = [{"type": "Prepend", "prepend": _MARK}] if space_prefix else []
    after = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if space_prefix else []
    back = {"type": "Replace", "pattern": {"String": _MARK}, "content": " "}
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*before, replace]},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": [back, {"type": "ByteFallback"}, {"type": "Fuse"}, *after]},
    }


def byte_fallback_model(vocabulary: Vocabulary, scores: Sequence[float], unknown_id: int) -> dict[str, Any]:
    """The model: merges by score; characters without a token become bytes. Raises TokenizerError without all 256
    byte tokens.
    """
    missing = [byte for byte in range(256) if f"<0x{byte:02X}>" not in vocabulary.ids]
    if missing:
        raise TokenizerError(f"{len(missing)} byte tokens are missing, the first <0x{missing[0]:02X}>")
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": vocabulary.text(unknown_id),
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": True,
        "byte_fallback": True,
        "ignore_merges": False,
        "vocab": vocabulary.ids,
        "merges": _merges(vocabulary, scores),
    }


def _merges(vocabulary: Vocabulary, scores: Sequence[float]) -> list[tuple[str, str]]:
    # SentencePiece looks up control, unknown and byte tokens apart: no merge leads to or from them.
    pieces = {token: index for token, index in vocabulary.ids.items() if vocabulary.types[index] in _MERGED}
    ranked = [
        (-scores[index], index, -cut, piece)
        for piece, index in pieces.items()
        for cut in range(1, len(piece))
        if piece[:cut] in pieces and piece[cut:] in pieces
    ]
    ranked.sort()
    return [(piece[:-negative], piece[-negative:]) for _, _, negative, piece in ranked]
