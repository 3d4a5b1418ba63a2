"""The one model of a replica: looked up by name, checked against, tokenised for."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

from pagemill.v1 import generation_pb2, model_pb2
from pagemill_common.intake import (
    LONG_BYTES,
    Limits,
    ModelFacts,
    Offload,
    Prepared,
    check_fields,
    detokenize,
    prepare,
    resolve_model,
    tokenize,
)
from pagemill_common.tokenisation import ModelTokenizer
from pagemill_replica.front.served import ServedModel
from pagemill_replica.front.submission import OutputText, Replay

SHORT_PROMPT_TOKENS = 1024
"""A prompt or a replay of so many token ids is worked on in the loop's turn: a thread would cost more than the work."""

T = TypeVar("T")


class ModelShelf:
    """Holds the model once it is open; NOT_FOUND before. CPU-heavy work runs in `executor`."""

    def __init__(self, served: ServedModel, executor: Executor) -> None:
        self._served = served
        self._threads = Offload(executor, 1)
        self._limits = Limits()
        self._model: model_pb2.Model | None = None
        self._facts: list[ModelFacts] = []

    @property
    def tokenizer(self) -> ModelTokenizer:
        """The model's tokenizer."""
        return self._served.tokenizer

    def open(self, model: model_pb2.Model) -> None:
        """The engine is warm and the limits are known."""
        self._model = model
        self._facts = [ModelFacts.from_model(model, self.tokenizer.end_of_text_ids)]

    def listed(self) -> list[model_pb2.Model]:
        """What ListModels answers."""
        return [] if self._model is None else [self._model]

    def get(self, name: str) -> model_pb2.Model:
        """The model by name or alias. Raises NOT_FOUND."""
        return resolve_model(name, self.listed())

    def facts(self, name: str) -> ModelFacts:
        """What requests for `name` are checked against. Raises NOT_FOUND."""
        return resolve_model(name, self._facts)

    def check(self, request: generation_pb2.GenerateRequest, facts: ModelFacts) -> None:
        """Checks every field that needs no tokenizer; a long prompt's ids are left to `prepare`.

        Raises INVALID_ARGUMENT or UNIMPLEMENTED.
        """
        short = len(request.token_ids.ids) <= SHORT_PROMPT_TOKENS
        check_fields(request, self._limits, facts if short else None)

    async def prepare(
        self, request: generation_pb2.GenerateRequest, facts: ModelFacts, counted: Callable[[int], None]
    ) -> Prepared:
        """Tokenises and completes a checked request; `counted` gets the prompt's tokens, whether or not they fit.

        Raises INVALID_ARGUMENT or OUT_OF_RANGE.
        """
        if 0 < len(request.token_ids.ids) <= SHORT_PROMPT_TOKENS:
            return prepare(request, self.tokenizer, facts, counted)
        return await self._in_thread(lambda: prepare(request, self.tokenizer, facts, counted), _is_long(request))

    async def text_of(self, prepared: Prepared, replay: Replay | None) -> OutputText:
        """Where the output's text begins, or goes on after `replay`. Raises INVALID_ARGUMENT."""
        detokeniser = prepared.detokeniser(self.tokenizer)
        if replay is None or len(replay.token_ids) <= SHORT_PROMPT_TOKENS:
            return OutputText.of(detokeniser, replay)
        return await self._in_thread(lambda: OutputText.of(detokeniser, replay))

    async def tokenize(self, request: generation_pb2.TokenizeRequest) -> generation_pb2.TokenizeResponse:
        """Answers Tokenize."""
        facts = self.facts(request.model)
        return await self._in_thread(lambda: tokenize(request, self.tokenizer, facts, self._limits), _is_long(request))

    async def detokenize(self, request: generation_pb2.DetokenizeRequest) -> generation_pb2.DetokenizeResponse:
        """Answers Detokenize."""
        facts = self.facts(request.model)
        return await self._in_thread(lambda: detokenize(request, self.tokenizer, facts, self._limits))

    async def _in_thread(self, work: Callable[[], T], long: bool = False) -> T:
        return await self._threads.run(work, long=long)


def _is_long(request: generation_pb2.GenerateRequest | generation_pb2.TokenizeRequest) -> bool:
    """A long text or chat is encoded one at a time, beside shorter ones. Routers send token ids."""
    return request.WhichOneof("input") != "token_ids" and request.ByteSize() >= LONG_BYTES
