"""Turns what handlers raise into gRPC statuses."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NoReturn

import grpc
from google.protobuf.message import DecodeError

from pagemill_common import errors, logs, telemetry
from pagemill_common.cancellation import being_cancelled

_log = logs.get("pagemill.grpc")

Context = grpc.aio.ServicerContext[Any, Any]


class StatusInterceptor(grpc.aio.ServerInterceptor):
    """Maps StatusError to its status with details, any other exception to INTERNAL with an incident id in the log.

    Works for typed and for raw-bytes handlers of every arity. A cancelled call and `context.abort` pass through. A
    CancelledError from anywhere else is a bug like any other: gRPC would take it for the call's own end and send no
    status, and the caller would wait for ever.

    gRPC decodes a request before it calls the handler, and answers bytes that it cannot decode with a bare UNKNOWN and
    a stack trace in the log. So decoding never fails here: what cannot be decoded reaches the guard as UNDECODABLE, and
    ends as INVALID_ARGUMENT with one line in the log.
    """

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Wraps the handler of one call."""
        handler = await continuation(handler_call_details)
        # grpc answers UNIMPLEMENTED by itself where there is no handler.
        if handler is None:
            return handler
        return _wrap(handler, handler_call_details.method)


UNDECODABLE = object()
"""Stands for a request whose bytes the method's decoder refused."""


def _decoding(decode: Callable[[bytes], Any] | None) -> Callable[[bytes], Any] | None:
    if decode is None:
        return None

    def decoded(raw: bytes) -> Any:
        try:
            return decode(raw)
        except DecodeError:
            return UNDECODABLE

    return decoded


def _wrap(handler: Any, method: str) -> grpc.RpcMethodHandler[Any, Any]:
    makers: dict[tuple[bool, bool], tuple[str, Any]] = {
        (False, False): ("unary_unary", grpc.unary_unary_rpc_method_handler),
        (False, True): ("unary_stream", grpc.unary_stream_rpc_method_handler),
        (True, False): ("stream_unary", grpc.stream_unary_rpc_method_handler),
        (True, True): ("stream_stream", grpc.stream_stream_rpc_method_handler),
    }
    attribute, make = makers[bool(handler.request_streaming), bool(handler.response_streaming)]
    inner = getattr(handler, attribute)
    outer: Any
    if inspect.isasyncgenfunction(inner):
        outer = _guard_generator(inner, method)
    elif inspect.iscoroutinefunction(inner):
        outer = _guard_coroutine(inner, method)
    else:
        return handler  # type: ignore[no-any-return]
    decode = handler.request_deserializer
    made: grpc.RpcMethodHandler[Any, Any] = make(
        outer,
        # A stream of requests is decoded while the handler reads it, whose own failure it is then.
        request_deserializer=decode if handler.request_streaming else _decoding(decode),
        response_serializer=handler.response_serializer,
    )
    return made


def _guard_coroutine(inner: Callable[..., Awaitable[Any]], method: str) -> Callable[[Any, Context], Awaitable[Any]]:
    async def guarded(request: Any, context: Context) -> Any:
        try:
            _check(request, context, method)
            return await inner(request, context)
        except grpc.aio.AbortError:
            raise
        except asyncio.CancelledError as stray:
            if being_cancelled():
                raise
            await abort(context, stray, method)
        except Exception as failure:
            await abort(context, failure, method)

    return guarded


def _guard_generator(
    inner: Callable[..., AsyncIterator[Any]], method: str
) -> Callable[[Any, Context], AsyncIterator[Any]]:
    async def guarded(request: Any, context: Context) -> AsyncIterator[Any]:
        try:
            _check(request, context, method)
            async with contextlib.aclosing(inner(request, context)) as messages:  # type: ignore[type-var]
                async for message in messages:
                    yield message
        except grpc.aio.AbortError:
            raise
        except asyncio.CancelledError as stray:
            if being_cancelled():
                raise
            await abort(context, stray, method)
        except Exception as failure:
            await abort(context, failure, method)

    return guarded


async def abort(context: Context, failure: BaseException, method: str) -> NoReturn:
    """Ends the call with the status that belongs to `failure`."""
    status = failure if isinstance(failure, errors.StatusError) else _incident(context, failure, method)
    try:
        await context.abort(status.code, status.message, status.trailing_metadata())
    except grpc.aio.InternalError:
        # The call has ended meanwhile, and gRPC takes this for its end: nobody is left to hear a status.
        raise asyncio.CancelledError from None
    raise AssertionError("context.abort returned")


def _check(request: Any, context: Context, method: str) -> None:
    if request is UNDECODABLE:
        _log.info("request refused: it cannot be decoded", method=method, peer=context.peer())
        raise errors.undecodable()


def _incident(context: Context, failure: BaseException, method: str) -> errors.StatusError:
    incident = secrets.token_hex(8)
    caller = telemetry.extract(context.invocation_metadata())
    _log.error(
        "call failed with an exception",
        exc_info=failure,
        incident=incident,
        method=method,
        trace_id=telemetry.trace_id(caller),
    )
    return errors.internal(incident)
