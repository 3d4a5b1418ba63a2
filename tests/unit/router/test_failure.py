"""What each status of a replica means for a call."""

from __future__ import annotations

import grpc
import pytest

from pagemill_common import errors
from pagemill_router.relay.failure import LOST, Failure, Verdict, broken, from_rpc_error


def arrived(error: errors.StatusError) -> Failure:
    """The failure as it comes over the wire."""
    trailers = grpc.aio.Metadata(*error.trailing_metadata())
    return from_rpc_error(grpc.aio.AioRpcError(error.code, grpc.aio.Metadata(), trailers, error.message))


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (errors.replica_full(0.1, "full"), Verdict.FULL),
        (errors.draining(None), Verdict.ELSEWHERE),
        (errors.wrong_epoch("a", "b"), Verdict.ELSEWHERE),
        (errors.replica_lost([], "engine died"), Verdict.ELSEWHERE),
        (errors.replica_lost([3], "engine died"), Verdict.ELSEWHERE),
        (errors.no_replica(1.0, "engine loading"), Verdict.ELSEWHERE),
        (errors.bad_fields([("sampling.top_p", "too large")]), Verdict.PASS),
        (errors.out_of_range("stop.max_tokens", "too long"), Verdict.PASS),
        (errors.model_not_found("x", []), Verdict.PASS),
        (errors.already_exists("x"), Verdict.PASS),
        (errors.unimplemented("n"), Verdict.PASS),
        (errors.deadline("prefill"), Verdict.PASS),
        (errors.internal("abc"), Verdict.PASS),
        (errors.slow_reader(1), Verdict.PASS),
    ],
)
def test_statuses_of_ours(error: errors.StatusError, verdict: Verdict) -> None:
    assert arrived(error).verdict is verdict


@pytest.mark.parametrize(
    ("code", "verdict"),
    [
        (grpc.StatusCode.UNAVAILABLE, Verdict.ELSEWHERE),
        (grpc.StatusCode.UNKNOWN, Verdict.ELSEWHERE),
        (grpc.StatusCode.INTERNAL, Verdict.ELSEWHERE),
        (grpc.StatusCode.CANCELLED, Verdict.FULL),
        (grpc.StatusCode.DEADLINE_EXCEEDED, Verdict.PASS),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, Verdict.PASS),
    ],
)
def test_statuses_of_the_transport(code: grpc.StatusCode, verdict: Verdict) -> None:
    error = grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), "reset")
    assert from_rpc_error(error).verdict is verdict


def test_a_status_is_passed_on_with_its_details_unchanged() -> None:
    original = errors.bad_fields([("sampling.top_p", "too large"), ("stop.strings[0]", "empty")])
    passed = arrived(original).passed_on()
    assert (passed.code, passed.message, passed.reason) == (original.code, original.message, original.reason)
    assert passed.trailing_metadata() == original.trailing_metadata()
    assert passed.to_rpc_status() == original.to_rpc_status()


def test_garbage_for_details_is_no_reason() -> None:
    trailers = grpc.aio.Metadata((errors.STATUS_DETAILS_KEY, b"\xff\xff"))
    failure = from_rpc_error(grpc.aio.AioRpcError(grpc.StatusCode.INTERNAL, grpc.aio.Metadata(), trailers, ""))
    assert failure.reason == ""


def test_a_lost_or_broken_replica_sends_the_call_elsewhere() -> None:
    assert LOST.verdict is broken("gap").verdict is Verdict.ELSEWHERE
