"""The models that the pool serves: who may serve a name, and the tokenizer behind it."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field

import grpc
from google.protobuf.message import DecodeError

from pagemill.v1 import model_pb2, replica_pb2
from pagemill_common import logs
from pagemill_common.block_hash import BlockHasher
from pagemill_common.tokenisation.model_tokenizer import ModelTokenizer
from pagemill_router.fleet.link import ReplicaLink

_log = logs.get("pagemill.router.models")

FETCH_SECONDS = 30.0
MAX_BUNDLE_BYTES = 256 * 1024 * 1024

FORGET_SECONDS = 60.0
"""How long a model is known after the last replica that served it is gone or serves another: one that restarts is back
before, and its callers hear UNAVAILABLE, not NOT_FOUND, meanwhile."""

_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")


@dataclass(slots=True)
class ServedModel:
    """One served name."""

    model: model_pb2.Model
    """As the first of its replicas described it."""
    tokenizer: ModelTokenizer
    hasher: BlockHasher
    holders: dict[str, model_pb2.Model] = field(default_factory=dict)
    """Address of each watched replica that serves it, with its own description."""
    claims: set[str] = field(default_factory=set)
    """Addresses of all whose replica last served it, of those that are lost too."""
    left_at: float = 0.0
    """When the last claim ended, by the book's clock."""

    @property
    def identity(self) -> tuple[str, int]:
        """What all its replicas must share."""
        return self.model.model_id, self.model.block_size

    @property
    def max_request_tokens(self) -> int:
        """The largest prompt and output together that any of its replicas can hold."""
        sizes = [one.max_request_tokens for one in self.holders.values()]
        return max(sizes, default=self.model.max_request_tokens)


class ModelBook:
    """Admits replicas to the names they serve, and fetches each tokenizer once.

    The first replica of a name decides its model id and block size for as long as any replica serves the name. An entry
    stays while a replica is only lost, and for FORGET_SECONDS more, so that a call can wait for one to come back. Calls
    hold what they use of an entry, which may leave the book meanwhile.
    """

    def __init__(self, executor: Executor, clock: Callable[[], float]) -> None:
        self._executor = executor
        self._clock = clock
        self._models: dict[str, ServedModel] = {}
        self._tokenizers: dict[bytes, ModelTokenizer] = {}
        self._fetching = asyncio.Lock()

    def __len__(self) -> int:
        return len(self._living())

    def all(self) -> list[ServedModel]:
        """All models by name."""
        return [model for _, model in sorted(self._living().items())]

    def meant_by(self, name: str) -> list[ServedModel]:
        """The models among which a caller's `name` decides: where it is empty, those with replicas if any has some."""
        models = self.all()
        return models if name else [model for model in models if model.holders] or models

    def get(self, name: str) -> ServedModel | None:
        """The model of this served name; None where there is none."""
        return self._living().get(name)

    def _living(self) -> dict[str, ServedModel]:
        """The models, once those are dropped that nobody has served for too long."""
        now = self._clock()
        for name, served in tuple(self._models.items()):
            if not served.claims and now - served.left_at >= FORGET_SECONDS:
                del self._models[name]
                self._drop_tokenizers()
                _log.info("model forgotten", model=name)
        return self._models

    def _drop_tokenizers(self) -> None:
        used = {id(served.tokenizer) for served in self._models.values()}
        for digest, tokenizer in tuple(self._tokenizers.items()):
            if id(tokenizer) not in used:
                del self._tokenizers[digest]

    async def admit(self, link: ReplicaLink, state: replica_pb2.ReplicaState) -> str:
        """Empty where the replica may serve, its tokenizer at hand; else why not."""
        name = state.model.name
        for label, value in (("name", state.name), ("epoch", state.epoch)):
            if not _NAME.fullmatch(value):
                return f"its {label} {value[:64]!r} is not made of 1 to 128 letters, digits, '.', '_' and '-'"
        if not name or state.model.block_size < 1:
            return "it names no model" if not name else "it names no block size"
        known = self.get(name)
        if known is not None and known.model == state.model and link.address in known.holders:
            return ""
        self.forget(link)
        if known is None or known.identity != _identity(state.model):
            if known is not None and known.holders:
                return _mismatch(known.model, state.model)
            known, trouble = await self._enter(link, state.model)
            if known is None:
                return trouble
        known.holders[link.address] = _copy(state.model)
        known.claims.add(link.address)
        return ""

    def leave(self, link: ReplicaLink) -> None:
        """The replica is lost, and may be back."""
        for served in self._models.values():
            served.holders.pop(link.address, None)

    def forget(self, link: ReplicaLink) -> None:
        """The replica is gone, or serves another model."""
        self.leave(link)
        for served in self._models.values():
            if link.address in served.claims:
                served.claims.discard(link.address)
                served.left_at = self._clock()

    async def _enter(self, link: ReplicaLink, model: model_pb2.Model) -> tuple[ServedModel | None, str]:
        async with self._fetching:
            known = self._models.get(model.name)
            if known is not None and known.holders:
                # Another replica was quicker.
                same = known.identity == _identity(model)
                return (known, "") if same else (None, _mismatch(known.model, model))
            try:
                async with asyncio.timeout(FETCH_SECONDS):
                    tokenizer = await self._fetch(link)
            except (grpc.aio.AioRpcError, TimeoutError, ValueError, DecodeError) as trouble:
                text = trouble.details() if isinstance(trouble, grpc.aio.AioRpcError) else str(trouble)
                return None, f"its tokenizer cannot be had: {text or type(trouble).__name__}"[:300]
            hasher = BlockHasher(model.model_id, "", model.block_size)
            served = self._models[model.name] = ServedModel(_copy(model), tokenizer, hasher, left_at=self._clock())
            self._drop_tokenizers()
            _log.info("model known", model=model.name, model_id=model.model_id[:16], replica=link.address)
            return served, ""

    async def _fetch(self, link: ReplicaLink) -> ModelTokenizer:
        """The tokenizer of a replica; ValueError where what it sends is not one."""
        # A digest can be offered only if all of one model are alike, so the one fetched last is the best guess.
        offered = next(reversed(self._tokenizers), b"")
        digest, chunks = b"", bytearray()
        async for message in link.stub.GetTokenizer(replica_pb2.GetTokenizerRequest(known_digest=offered)):
            part = message.WhichOneof("part")
            if part == "header":
                digest = message.header.digest
                if digest in self._tokenizers:
                    return self._tokenizers[digest]
            else:
                chunks += message.chunk
            if len(chunks) > MAX_BUNDLE_BYTES:
                raise ValueError("the bundle is too large")
        loop = asyncio.get_running_loop()
        tokenizer = await loop.run_in_executor(self._executor, _build, bytes(chunks), digest)
        self._tokenizers[digest] = tokenizer
        return tokenizer


def _build(serialised: bytes, digest: bytes) -> ModelTokenizer:
    if hashlib.sha256(serialised).digest() != digest:
        raise ValueError("the bundle does not have the digest that was announced")
    return ModelTokenizer.from_bundle(model_pb2.TokenizerBundle.FromString(serialised))


def _identity(model: model_pb2.Model) -> tuple[str, int]:
    return model.model_id, model.block_size


def _mismatch(pool: model_pb2.Model, own: model_pb2.Model) -> str:
    if pool.block_size != own.block_size:
        return f"its block size is {own.block_size}, that of the pool {pool.block_size}"
    return f"its model id is {own.model_id[:12]}, that of {pool.name} in the pool {pool.model_id[:12]}"


def _copy(model: model_pb2.Model) -> model_pb2.Model:
    copy = model_pb2.Model()
    copy.CopyFrom(model)
    return copy
