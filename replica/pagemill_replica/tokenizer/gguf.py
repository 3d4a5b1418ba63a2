"""A tokenizer from the metadata of a GGUF file.

A GGUF file holds tokens, their types, merges or scores, and the *name* of the rule that splits text before merging.
The rule itself has to be known here: a file with another name is refused, because a tokenizer that is nearly right
makes a model silently worse.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pagemill.v1 import model_pb2
from pagemill_common.tokenisation import TokenizerError
from pagemill_replica.tokenizer.end_of_text import end_of_text_ids
from pagemill_replica.tokenizer.gguf_vocabulary import Vocabulary, read_flag, read_id, read_vocabulary
from pagemill_replica.tokenizer.pre_types import PRE_TYPES, PreType
from pagemill_replica.tokenizer.sentencepiece import byte_fallback_model, sentencepiece_parts

__all__ = ["bundle_from_metadata"]

_KEY = "tokenizer.ggml."


def bundle_from_metadata(metadata: Mapping[str, Any], eos_token_ids: Sequence[int] = ()) -> model_pb2.TokenizerBundle:
    """The bundle of a GGUF file's tokenizer; `eos_token_ids` are further ends of text.

    Raises TokenizerError for a model or pre type that is not known, and for metadata that contradict each other.
    """
    model = metadata.get(_KEY + "model")
    if model == "gpt2":
        return _byte_level(metadata, eos_token_ids)
    if model == "llama":
        return _sentencepiece(metadata, eos_token_ids)
    known = "gpt2 (byte-level BPE) and llama (SentencePiece BPE)"
    raise TokenizerError(f"tokenizer.ggml.model is {_name(model)}; known are {known}")


def _byte_level(metadata: Mapping[str, Any], eos_token_ids: Sequence[int]) -> model_pb2.TokenizerBundle:
    name = metadata.get(_KEY + "pre")
    pre = PRE_TYPES.get(name) if isinstance(name, str) else None
    if pre is None:
        raise TokenizerError(f"tokenizer.ggml.pre is {_name(name)}; known are {', '.join(sorted(PRE_TYPES))}")
    vocabulary = read_vocabulary(metadata)
    description = {
        "normalizer": pre.normalizer,
        "pre_tokenizer": pre.pre_tokenizer,
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": pre.ignore_merges,
            "vocab": vocabulary.ids,
            "merges": _merges(metadata, vocabulary, pre),
        },
    }
    return _bundle(metadata, vocabulary, description, eos_token_ids, default_bos=pre.adds_bos)


def _sentencepiece(metadata: Mapping[str, Any], eos_token_ids: Sequence[int]) -> model_pb2.TokenizerBundle:
    vocabulary = read_vocabulary(metadata)
    scores = metadata.get(_KEY + "scores")
    if not isinstance(scores, Sequence) or len(scores) != vocabulary.size:
        raise TokenizerError("tokenizer.ggml.scores is missing or has another length than the tokens")
    prefix = read_flag(metadata, "add_space_prefix")
    description = sentencepiece_parts(space_prefix=prefix is not False)
    unknown = read_id(metadata, "unknown_token_id", vocabulary.size)
    description["model"] = byte_fallback_model(vocabulary, scores, 0 if unknown is None else unknown)
    return _bundle(metadata, vocabulary, description, eos_token_ids, default_bos=True, spm_ids=True)


def _merges(metadata: Mapping[str, Any], vocabulary: Vocabulary, pre: PreType) -> list[list[str]]:
    merges = metadata.get(_KEY + "merges")
    if not isinstance(merges, Sequence) or not merges:
        raise TokenizerError("tokenizer.ggml.merges is missing")
    pairs = [str(merge).split(" ") for merge in merges]
    for pair in pairs:
        if len(pair) != 2 or not all(part in vocabulary.ids for part in (*pair, "".join(pair))):
            raise TokenizerError(f"tokenizer.ggml.merges has {' '.join(pair)[:60]!r}, which no tokens make up")
    return pairs


def _bundle(
    metadata: Mapping[str, Any],
    vocabulary: Vocabulary,
    description: dict[str, Any],
    eos_token_ids: Sequence[int],
    *,
    default_bos: bool,
    spm_ids: bool = False,
) -> model_pb2.TokenizerBundle:
    size = vocabulary.size
    bos = read_id(metadata, "bos_token_id", size)
    eos = read_id(metadata, "eos_token_id", size)
    if spm_ids:  # what SentencePiece's llama files mean where they say nothing
        bos, eos = (1 if bos is None else bos), (2 if eos is None else eos)
    add_bos = _adds(metadata, "add_bos_token", default_bos and bos is not None, bos)
    add_eos = _adds(metadata, "add_eos_token", False, eos)
    turn_ends = [read_id(metadata, key, size) for key in ("eot_token_id", "eom_token_id")]
    template = metadata.get("tokenizer.chat_template", "")
    whole = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": vocabulary.added_tokens(),
        "post_processor": None,
        **description,
    }
    return model_pb2.TokenizerBundle(
        tokenizer_json=json.dumps(whole, ensure_ascii=False, separators=(",", ":")).encode(),
        chat_template=template if isinstance(template, str) else "",
        bos_token="" if bos is None else vocabulary.text(bos),
        eos_token="" if eos is None else vocabulary.text(eos),
        end_of_text_ids=end_of_text_ids([*eos_token_ids, eos, *turn_ends], vocabulary.special_ids(), size),
        add_bos=add_bos,
        bos_token_id=bos,
        add_eos=add_eos,
        eos_token_id=eos,
    )


def _adds(metadata: Mapping[str, Any], key: str, default: bool, token_id: int | None) -> bool:
    flag = read_flag(metadata, key)
    if flag and token_id is None:
        raise TokenizerError(f"tokenizer.ggml.{key} is set, but the file names no such token")
    return default if flag is None else flag


def _name(value: object) -> str:
    return "missing" if value is None else repr(value)[:60]
