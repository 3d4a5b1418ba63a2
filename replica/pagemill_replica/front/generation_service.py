"""GenerationService as a single replica serves it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import grpc

from pagemill.v1 import generation_pb2, generation_pb2_grpc
from pagemill_common.grpc.sending import send
from pagemill_replica.front.answer import Answer
from pagemill_replica.front.arrival import arrival
from pagemill_replica.front.generator import Generator
from pagemill_replica.front.models import ModelShelf

Context = grpc.aio.ServicerContext[Any, Any]


class GenerationServicer(generation_pb2_grpc.GenerationServiceServicer):
    """Generate, GenerateText, Tokenize, Detokenize, ListModels, GetModel."""

    def __init__(self, generator: Generator, models: ModelShelf, clock: Callable[[], float]) -> None:
        self._generator = generator
        self._models = models
        self._clock = clock

    async def Generate(  # type: ignore[override]  # noqa: N802 - writes to the context
        self, request: generation_pb2.GenerateRequest, context: Context
    ) -> None:
        """Streams an answer."""
        await self._generator.run(request, arrival(context, self._clock), partial(send, context))

    async def GenerateText(  # noqa: N802 - the name in the protocol
        self, request: generation_pb2.GenerateTextRequest, context: Context
    ) -> generation_pb2.GenerateTextResponse:
        """Answers in one piece."""
        answer = Answer()
        await self._generator.run(request.request, arrival(context, self._clock), answer.write)
        return answer.whole()

    async def Tokenize(  # noqa: N802 - the name in the protocol
        self, request: generation_pb2.TokenizeRequest, context: Context
    ) -> generation_pb2.TokenizeResponse:
        """Token ids of a text or a chat."""
        return await self._models.tokenize(request)

    async def Detokenize(  # noqa: N802 - the name in the protocol
        self, request: generation_pb2.DetokenizeRequest, context: Context
    ) -> generation_pb2.DetokenizeResponse:
        """The text of token ids."""
        return await self._models.detokenize(request)

    async def ListModels(  # noqa: N802 - the name in the protocol
        self, request: generation_pb2.ListModelsRequest, context: Context
    ) -> generation_pb2.ListModelsResponse:
        """The model, once it is served."""
        return generation_pb2.ListModelsResponse(models=self._models.listed())

    async def GetModel(  # noqa: N802 - the name in the protocol
        self, request: generation_pb2.GetModelRequest, context: Context
    ) -> generation_pb2.GetModelResponse:
        """The model by name or alias."""
        return generation_pb2.GetModelResponse(model=self._models.get(request.model))
