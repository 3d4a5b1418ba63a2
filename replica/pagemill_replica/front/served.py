"""The model as the front knows it: names, tokenizer, limits, and how callers are told of it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from pagemill.v1 import model_pb2
from pagemill_common.tokenisation import ModelTokenizer
from pagemill_replica.checkpoint import Checkpoint, Family, GenerationDefaults, open_checkpoint
from pagemill_replica.engine.messages import Ready
from pagemill_replica.settings import ReplicaSettings
from pagemill_replica.tokenizer import build_bundle

_FAMILIES = {Family.LLAMA: "llama", Family.MISTRAL: "mistral", Family.QWEN2: "qwen2", Family.QWEN3: "qwen3"}


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What does not depend on the engine."""

    name: str
    aliases: tuple[str, ...]
    checkpoint: Checkpoint
    tokenizer: ModelTokenizer
    bundle: bytes
    """The serialised TokenizerBundle."""
    digest: bytes
    """SHA-256 of the bundle, kept because it takes long for a large one."""
    model_id: str


def load(settings: ReplicaSettings) -> ServedModel:
    """Reads everything but the weights' values. Blocks: the first time a weight file is seen it is hashed.

    Raises CheckpointError or TokenizerError, one line that names file and reason.
    """
    checkpoint = open_checkpoint(settings.model_path)
    bundle = build_bundle(checkpoint)
    serialised = bundle.SerializeToString(deterministic=True)
    cache: Path = settings.cache_dir / "hashes"
    return ServedModel(
        name=settings.served_name,
        aliases=settings.model_aliases,
        checkpoint=checkpoint,
        tokenizer=ModelTokenizer.from_bundle(bundle),
        bundle=serialised,
        digest=hashlib.sha256(serialised).digest(),
        model_id=checkpoint.identity(cache),
    )


def fingerprint(served: ServedModel, ready: Ready) -> str:
    """What must be equal for an answer to resume exactly on another replica, in 32 hex digits."""
    parts = {
        "model": served.model_id,
        "tokenizer": served.digest.hex(),
        "adapters": [],
        "dtype": ready.dtype,
        "device": ready.device,
        "deterministic": ready.deterministic,
        "parallel": 1,
        "version": _version(),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def describe(served: ServedModel, ready: Ready) -> model_pb2.Model:
    """The model as ListModels and WatchState tell of it."""
    config = served.checkpoint.config
    return model_pb2.Model(
        name=served.name,
        aliases=served.aliases,
        family=_FAMILIES[config.family],
        max_context_tokens=ready.max_context_tokens,
        vocabulary_size=config.vocab_size,
        block_size=ready.block_size,
        dtype=ready.dtype,
        has_chat_template=bool(served.tokenizer.bundle.chat_template),
        model_id=served.model_id,
        fingerprint=fingerprint(served, ready),
        ready_replicas=1,
        sampling_defaults=_defaults(served.checkpoint.generation),
        max_request_tokens=ready.max_request_tokens,
    )


def _defaults(generation: GenerationDefaults) -> model_pb2.SamplingDefaults:
    return model_pb2.SamplingDefaults(
        temperature=generation.temperature,
        top_k=generation.top_k,
        top_p=generation.top_p,
        min_p=generation.min_p,
        repetition_penalty=generation.repetition_penalty,
    )


def _version() -> str:
    try:
        return version("pagemill")
    except PackageNotFoundError:
        return "source"
