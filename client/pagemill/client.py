"""The blocking client."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from importlib import metadata as package_metadata
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

import grpc

from pagemill.answer import Answer, answer_from
from pagemill.channel import DEADLINE_MARGIN, channel_options, grpc_deadline, resolve_target, service_config
from pagemill.errors import NotReady, PagemillError
from pagemill.options import ChatTurn, GenerateOptions
from pagemill.request import build_detokenize, build_request, build_tokenize, check_timeout, name_request
from pagemill.stream import GenerateStream, error_from_call
from pagemill.tracing import start_span
from pagemill.v1 import admin_pb2, admin_pb2_grpc, generation_pb2, generation_pb2_grpc, model_pb2

_Request = TypeVar("_Request")
_Response = TypeVar("_Response")

if TYPE_CHECKING:
    _Method = Callable[..., Any] | grpc.UnaryUnaryMultiCallable[_Request, _Response]

Metadata = Sequence[tuple[str, str | bytes]]


def user_agent() -> str:
    """What the client calls itself towards servers."""
    try:
        return f"pagemill-python/{package_metadata.version('pagemill')}"
    except package_metadata.PackageNotFoundError:
        return "pagemill-python"


class Client:
    """Calls a router, or a single replica. Safe to share between threads; make one and keep it.

    Args:
        target: `host:port`, `dns:///name:port`, or several numeric `host:port` with commas between them.
            PAGEMILL_TARGET, else 127.0.0.1:8450, where left out.
        timeout: seconds for each call that sets none of its own. None leaves generation to the server's default.
        credentials: TLS credentials. None connects in plain text.
        metadata: sent with every call.
        max_attempts: tries of a call that gets UNAVAILABLE before any output, 1 to 5; 1 switches retries off.
        random_bytes: where the ids of requests without one come from; like os.urandom.

    Raises:
        ValueError: for a target that no call could reach; it says how to write one.

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
        self._metadata = tuple(metadata)
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
    ) -> GenerateStream:
        """Starts an answer to exactly one of `prompt`, `messages` and `token_ids`, and streams it.

        See `GenerateOptions` for the keywords. `timeout` seconds bound the whole answer.

        Raises:
            InvalidRequest: for values that do not fit the wire. All other errors come from the iteration.

        """
        request = name_request(self._request(prompt, messages, token_ids, options), self._random_bytes)
        span = start_span(request)
        call = self._generation.Generate(
            request,
            timeout=grpc_deadline(self._timeout_of(options)),
            metadata=(*self._metadata, *span.headers),
        )
        return GenerateStream(call, span, self.target)

    def generate_text(
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
        request = name_request(self._request(prompt, messages, token_ids, options), self._random_bytes)
        span = start_span(request)
        try:
            answer = answer_from(
                self._call(
                    self._generation.GenerateText,
                    generation_pb2.GenerateTextRequest(request=request),
                    self._timeout_of(options),
                    extra_metadata=span.headers,
                    margin=DEADLINE_MARGIN,
                )
            )
        except PagemillError as error:
            span.end(error=error)
            raise
        except BaseException:
            span.end(cancelled=True)
            raise
        span.end(started=answer.started, finished=answer.finished, usage=answer.usage)
        return answer

    def tokenize(
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
        return self._look(self._generation.Tokenize, self._unready.Tokenize, request, timeout)

    def detokenize(
        self,
        token_ids: Sequence[int],
        *,
        model: str | None = None,
        skip_special_tokens: bool | None = None,
        timeout: float | None = None,
    ) -> str:
        """The text that token ids stand for."""
        request = build_detokenize(token_ids, model, skip_special_tokens)
        return self._look(self._generation.Detokenize, self._unready.Detokenize, request, timeout).text

    def models(self, *, timeout: float | None = None) -> list[model_pb2.Model]:
        """The models that ready replicas serve."""
        request = generation_pb2.ListModelsRequest()
        return list(self._look(self._generation.ListModels, self._unready.ListModels, request, timeout).models)

    def model(self, name: str | None = None, *, timeout: float | None = None) -> model_pb2.Model:
        """One model by name or alias; the only one where left out. Raises ModelNotFound where none serves it."""
        request = generation_pb2.GetModelRequest(model=name or "")
        return self._look(self._generation.GetModel, self._unready.GetModel, request, timeout).model

    def replicas(self, *, timeout: float | None = None) -> admin_pb2.ListReplicasResponse:
        """The replicas that the router knows, how it admits, and its policy."""
        return self._steer(self._admin.ListReplicas, admin_pb2.ListReplicasRequest(), timeout)

    def cordon(self, replica: str, *, reason: str = "", timeout: float | None = None) -> admin_pb2.ReplicaStatus:
        """Has the router send a replica no further requests until `uncordon`."""
        request = admin_pb2.CordonRequest(replica=replica, reason=reason)
        return self._steer(self._admin.Cordon, request, timeout).replica

    def uncordon(self, replica: str, *, timeout: float | None = None) -> admin_pb2.ReplicaStatus:
        """Takes a cordon back."""
        return self._steer(self._admin.Uncordon, admin_pb2.UncordonRequest(replica=replica), timeout).replica

    def explain(
        self,
        prompt: str | None = None,
        *,
        messages: Sequence[ChatTurn] | None = None,
        token_ids: Sequence[int] | None = None,
        **options: Unpack[GenerateOptions],
    ) -> admin_pb2.ExplainRouteResponse:
        """Says where the router would send a request and why, and sends it nowhere."""
        request = self._request(prompt, messages, token_ids, options)
        return self._steer(
            self._admin.ExplainRoute, admin_pb2.ExplainRouteRequest(request=request), self._timeout_of(options)
        )

    def service_config(self) -> str:
        """The service config in use as JSON, for channels of other languages."""
        return service_config(self._max_attempts)

    def close(self) -> None:
        """Closes the connections; calls under way are cancelled."""
        self._healthy.close()
        self._any.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _open(self, credentials: grpc.ChannelCredentials | None, *, only_healthy: bool) -> grpc.Channel:
        options = channel_options(user_agent(), self._max_attempts, only_healthy=only_healthy)
        if credentials is None:
            return grpc.insecure_channel(self.target, options)
        return grpc.secure_channel(self.target, credentials, options)

    def _request(
        self,
        prompt: str | None,
        messages: Sequence[ChatTurn] | None,
        token_ids: Sequence[int] | None,
        options: GenerateOptions,
    ) -> generation_pb2.GenerateRequest:
        return build_request(prompt, messages, token_ids, with_default_timeout(options, self._timeout))

    def _timeout_of(self, options: GenerateOptions) -> float | None:
        return with_default_timeout(options, self._timeout).get("timeout")

    def _look(
        self,
        method: _Method[_Request, _Response],
        unready: _Method[_Request, _Response],
        request: _Request,
        timeout: float | None,
    ) -> _Response:
        """A call that needs no ready replica: to a ready server, else to any."""
        try:
            return self._call(method, request, timeout)
        except NotReady:
            return self._call(unready, request, timeout)

    def _steer(self, method: _Method[_Request, _Response], request: _Request, timeout: float | None) -> _Response:
        """A call that only routers answer."""
        return self._call(method, request, timeout, only_routers=True)

    def _call(
        self,
        method: _Method[_Request, _Response],
        request: _Request,
        timeout: float | None,
        *,
        extra_metadata: Metadata = (),
        margin: float = 0.0,
        only_routers: bool = False,
    ) -> _Response:
        check_timeout(timeout)
        seconds = timeout if timeout is not None else self._timeout
        try:
            response: _Response = method(
                request,
                timeout=None if seconds is None else seconds + margin,
                metadata=(*self._metadata, *extra_metadata),
            )
        except grpc.RpcError as error:
            raise error_from_call(error, self.target, only_routers=only_routers) from None
        return response


def with_default_timeout(options: GenerateOptions, timeout: float | None) -> GenerateOptions:
    """The options with the client's own timeout where they set none."""
    if timeout is None or options.get("timeout") is not None:
        return options
    return {**options, "timeout": timeout}
