"""The asyncio client."""

# `timeout` is the server's to keep, and becomes the call's deadline: asyncio.timeout around it would lose the details.
# ruff: noqa: ASYNC109

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import grpc
import grpc.aio

from pagemill.aio_stream import AsyncGenerateStream, error_from_aio
from pagemill.answer import Answer, answer_from
from pagemill.channel import DEADLINE_MARGIN, channel_options, grpc_deadline, resolve_target
from pagemill.client import Metadata, user_agent, with_default_timeout
from pagemill.errors import NotReady, PagemillError
from pagemill.options import ChatTurn, GenerateOptions
from pagemill.request import build_detokenize, build_request, build_tokenize, check_timeout, name_request
from pagemill.tracing import start_span
from pagemill.v1 import admin_pb2, admin_pb2_grpc, generation_pb2, generation_pb2_grpc, model_pb2

_Request = TypeVar("_Request")
_Response = TypeVar("_Response")


class AsyncClient:
    """Calls a router, or a single replica, from asyncio. Make it inside the running loop, one for each loop.

    The arguments are those of `Client`.
    """

    def __init__(
        self,
        target: str | None = None,
        *,
        timeout: float | None = None,
        credentials: grpc.ChannelCredentials | None = None,
        metadata: Metadata = (),
        max_attempts: int = 3,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        check_timeout(timeout)
        self.target = resolve_target(target)
        """The gRPC target in use."""
        self._timeout = timeout
        self._metadata = list(metadata)
        self._max_attempts = max_attempts
        self._random_bytes = random_bytes
        self._healthy = self._open(credentials, only_healthy=True)
        # Connects when a call needs it: what a server that is not ready says of itself.
        self._any = self._open(credentials, only_healthy=False)
        self._generation = generation_pb2_grpc.GenerationServiceStub(self._healthy)
        self._unready = generation_pb2_grpc.GenerationServiceStub(self._any)
        self._admin = admin_pb2_grpc.AdminServiceStub(self._any)

    def generate(
        self,
        prompt: str | None = None,
        *,
        messages: Sequence[ChatTurn] | None = None,
        token_ids: Sequence[int] | None = None,
        **options: Unpack[GenerateOptions],
    ) -> AsyncGenerateStream:
        """Starts an answer to exactly one of `prompt`, `messages` and `token_ids`: `async for chunk in ...`.

        See `GenerateOptions` for the keywords. `timeout` seconds bound the whole answer.

        Raises:
            InvalidRequest: for values that do not fit the wire. All other errors come from the iteration.

        """
        options = with_default_timeout(options, self._timeout)
        request = name_request(build_request(prompt, messages, token_ids, options), self._random_bytes)
        span = start_span(request)
        call = self._generation.Generate(
            request,
            timeout=grpc_deadline(options.get("timeout")),
            metadata=self._headers(span.headers),
        )
        return AsyncGenerateStream(call, span, self.target)

    async def generate_text(
        self,
        prompt: str | None = None,
        *,
        messages: Sequence[ChatTurn] | None = None,
        token_ids: Sequence[int] | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Answer:
        """Asks as `generate` does and returns the whole answer at once.

        Raises:
            PagemillError: for whatever status the server answers with.

        """
        options = with_default_timeout(options, self._timeout)
        request = name_request(build_request(prompt, messages, token_ids, options), self._random_bytes)
        span = start_span(request)
        try:
            response: generation_pb2.GenerateTextResponse = await self._call(
                self._generation.GenerateText,
                generation_pb2.GenerateTextRequest(request=request),
                options.get("timeout"),
                extra_metadata=span.headers,
                margin=DEADLINE_MARGIN,
            )
        except PagemillError as error:
            span.end(error=error)
            raise
        except BaseException:
            span.end(cancelled=True)
            raise
        answer = answer_from(response)
        span.end(started=answer.started, finished=answer.finished, usage=answer.usage)
        return answer

    async def tokenize(
        self,
        text: str | None = None,
        *,
        messages: Sequence[ChatTurn] | None = None,
        model: str | None = None,
        add_special_tokens: bool | None = None,
        timeout: float | None = None,
    ) -> generation_pb2.TokenizeResponse:
        """The token ids that `generate` would use for a text or a chat, with the pieces they stand for."""
        request = build_tokenize(text, messages, model, add_special_tokens)
        response: generation_pb2.TokenizeResponse = await self._look("Tokenize", request, timeout)
        return response

    async def detokenize(
        self,
        token_ids: Sequence[int],
        *,
        model: str | None = None,
        skip_special_tokens: bool | None = None,
        timeout: float | None = None,
    ) -> str:
        """The text that token ids stand for."""
        request = build_detokenize(token_ids, model, skip_special_tokens)
        response: generation_pb2.DetokenizeResponse = await self._look("Detokenize", request, timeout)
        return response.text

    async def models(self, *, timeout: float | None = None) -> list[model_pb2.Model]:
        """The models that ready replicas serve."""
        response: generation_pb2.ListModelsResponse = await self._look(
            "ListModels", generation_pb2.ListModelsRequest(), timeout
        )
        return list(response.models)

    async def model(self, name: str | None = None, *, timeout: float | None = None) -> model_pb2.Model:
        """One model by name or alias; the only one where left out. Raises ModelNotFound where none serves it."""
        response: generation_pb2.GetModelResponse = await self._look(
            "GetModel", generation_pb2.GetModelRequest(model=name or ""), timeout
        )
        return response.model

    async def replicas(self, *, timeout: float | None = None) -> admin_pb2.ListReplicasResponse:
        """The replicas that the router knows, how it admits, and its policy."""
        response: admin_pb2.ListReplicasResponse = await self._steer(
            self._admin.ListReplicas, admin_pb2.ListReplicasRequest(), timeout
        )
        return response

    async def cordon(self, replica: str, *, reason: str = "", timeout: float | None = None) -> admin_pb2.ReplicaStatus:
        """Has the router send a replica no further requests until `uncordon`."""
        response: admin_pb2.CordonResponse = await self._steer(
            self._admin.Cordon, admin_pb2.CordonRequest(replica=replica, reason=reason), timeout
        )
        return response.replica

    async def uncordon(self, replica: str, *, timeout: float | None = None) -> admin_pb2.ReplicaStatus:
        """Takes a cordon back."""
        response: admin_pb2.UncordonResponse = await self._steer(
            self._admin.Uncordon, admin_pb2.UncordonRequest(replica=replica), timeout
        )
        return response.replica

    async def explain(
        self,
        prompt: str | None = None,
        *,
        messages: Sequence[ChatTurn] | None = None,
        token_ids: Sequence[int] | None = None,
        **options: Unpack[GenerateOptions],
    ) -> admin_pb2.ExplainRouteResponse:
        """Says where the router would send a request and why, and sends it nowhere."""
        options = with_default_timeout(options, self._timeout)
        request = build_request(prompt, messages, token_ids, options)
        response: admin_pb2.ExplainRouteResponse = await self._steer(
            self._admin.ExplainRoute, admin_pb2.ExplainRouteRequest(request=request), options.get("timeout")
        )
        return response

    async def close(self) -> None:
        """Closes the connections; calls under way are cancelled."""
        await self._healthy.close()
        await self._any.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def _open(self, credentials: grpc.ChannelCredentials | None, *, only_healthy: bool) -> grpc.aio.Channel:
        options = channel_options(user_agent(), self._max_attempts, only_healthy=only_healthy)
        if credentials is None:
            return grpc.aio.insecure_channel(self.target, options)
        return grpc.aio.secure_channel(self.target, credentials, options)

    def _headers(self, extra: Metadata = ()) -> grpc.aio.Metadata:
        return grpc.aio.Metadata(*self._metadata, *extra)

    async def _look(self, name: str, request: object, timeout: float | None) -> Any:
        """A call of GenerationService that needs no ready replica: to a ready server, else to any."""
        try:
            return await self._call(getattr(self._generation, name), request, timeout)
        except NotReady:
            return await self._call(getattr(self._unready, name), request, timeout)

    async def _steer(self, method: Any, request: object, timeout: float | None) -> Any:
        """A call that only routers answer."""
        return await self._call(method, request, timeout, only_routers=True)

    async def _call(
        self,
        method: Any,
        request: object,
        timeout: float | None,
        *,
        extra_metadata: Metadata = (),
        margin: float = 0.0,
        only_routers: bool = False,
    ) -> Any:
        check_timeout(timeout)
        seconds = timeout if timeout is not None else self._timeout
        try:
            return await method(
                request,
                timeout=None if seconds is None else seconds + margin,
                metadata=self._headers(extra_metadata),
            )
        except grpc.aio.AioRpcError as error:
            raise error_from_aio(error, self.target, only_routers=only_routers) from None
