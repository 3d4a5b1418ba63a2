"""Turns what handlers raise into gRPC statuses."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NoReturn

import grpc

from pagemill_common import errors, logs, telemetry

_log = logs.get("pagemill.grpc")

Context = grpc.aio.ServicerContext[Any, Any]


class StatusInterceptor(grpc.aio.ServerInterceptor):
    """Maps StatusError to its status with details, any other exception to INTERNAL with an incident id in the log.

    Works for typed and for raw-bytes handlers of every arity. A cancelled call and `context.abort` pass through. A
    CancelledError from anywhere else is a bug like any other: gRPC would take it for the call's own end and send no
    status, and the caller would wait for ever.
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
    made: grpc.RpcMethodHandler[Any, Any] = make(
        outer, request_deserializer=handler.request_deserializer, response_serializer=handler.response_serializer
    )
    return made


def _guard_coroutine(inner: Callable[..., Awaitable[Any]], method: str) -> Callable[[Any, Context], Awaitable[Any]]:
    async def guarded(request: Any, context: Context) -> Any:
        try:
            return await inner(request, context)
        except grpc.aio.AbortError:
            raise
        except asyncio.CancelledError as stray:
            if _being_cancelled():
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
            async with contextlib.aclosing(inner(request, context)) as messages:  # type: ignore[type-var]
                async for message in messages:
                    yield message
        except grpc.aio.AbortError:
            raise
        except asyncio.CancelledError as stray:
            if _being_cancelled():
                raise
            await abort(context, stray, method)
        except Exception as failure:
            await abort(context, failure, method)

    return guarded


def _being_cancelled() -> bool:
    """Somebody has cancelled the task that runs the call: gRPC for a caller that left, or the loop as it ends."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


async def abort(context: Context, failure: BaseException, method: str) -> NoReturn:
    """Ends the call with the status that belongs to `failure`."""
    status = failure if isinstance(failure, errors.StatusError) else _incident(context, failure, method)
    await context.abort(status.code, status.message, status.trailing_metadata())
    raise AssertionError("context.abort returned")


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
