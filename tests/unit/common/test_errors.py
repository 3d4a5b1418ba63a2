"""Status errors: codes, details, and their bounded size."""

from __future__ import annotations

import base64
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from hypothesis import given
from hypothesis import strategies as st

from pagemill.reasons import ERROR_DOMAIN, Reason
from pagemill.v1 import internal_pb2
from pagemill_common import errors
from pagemill_common.errors import MAX_STATUS_BYTES, MAX_VIOLATIONS, PUSHBACK_KEY, STATUS_DETAILS_KEY, StatusError

Code = grpc.StatusCode


def details(error: StatusError) -> dict[str, Any]:
    """The details as a client finds them in the trailers, by type name."""
    trailers = dict(error.trailing_metadata())
    status = status_pb2.Status.FromString(trailers[STATUS_DETAILS_KEY])  # type: ignore[arg-type]
    assert status.code == error.code.value[0]
    assert status.message == error.message
    found = {}
    for packed in status.details:
        for kind in (
            error_details_pb2.ErrorInfo,
            error_details_pb2.BadRequest,
            error_details_pb2.ResourceInfo,
            error_details_pb2.RetryInfo,
            error_details_pb2.QuotaFailure,
            internal_pb2.PartialOutput,
        ):
            message = kind()
            if packed.Unpack(message):
                found[kind.DESCRIPTOR.name] = message
    assert len(found) == len(status.details)
    return found


@pytest.mark.parametrize(
    ("error", "code", "reason", "kinds", "pushback"),
    [
        (errors.bad_fields([("a", "b")]), Code.INVALID_ARGUMENT, Reason.INVALID_FIELD, {"BadRequest"}, "-1"),
        (errors.unimplemented("n"), Code.UNIMPLEMENTED, Reason.FIELD_NOT_SUPPORTED, set(), "-1"),
        (errors.out_of_range("text", "long"), Code.OUT_OF_RANGE, Reason.TOO_LONG, {"BadRequest"}, "-1"),
        (errors.model_not_found("x", ["y"]), Code.NOT_FOUND, Reason.MODEL_NOT_FOUND, {"ResourceInfo"}, "-1"),
        (errors.already_exists("id"), Code.ALREADY_EXISTS, Reason.DUPLICATE_REQUEST_ID, {"ResourceInfo"}, "-1"),
        (errors.unauthenticated("who"), Code.UNAUTHENTICATED, Reason.UNAUTHENTICATED, set(), "-1"),
        (errors.permission_denied("no"), Code.PERMISSION_DENIED, Reason.PERMISSION_DENIED, set(), "-1"),
        (
            errors.quota_exceeded("tenant", "used up", 2.0),
            Code.RESOURCE_EXHAUSTED,
            Reason.QUOTA_EXCEEDED,
            {"QuotaFailure", "RetryInfo"},
            "2000",
        ),
        (errors.queue_full(1.5, "full"), Code.RESOURCE_EXHAUSTED, Reason.QUEUE_FULL, {"RetryInfo"}, "1500"),
        (errors.replica_full(0.0, "full"), Code.RESOURCE_EXHAUSTED, Reason.REPLICA_FULL, {"RetryInfo"}, "1"),
        (errors.slow_reader(10), Code.RESOURCE_EXHAUSTED, Reason.SLOW_READER, set(), "-1"),
        (errors.no_replica(1.0, "none"), Code.UNAVAILABLE, Reason.NO_REPLICA, {"RetryInfo"}, "1000"),
        (errors.draining(0.25), Code.UNAVAILABLE, Reason.DRAINING, {"RetryInfo"}, "250"),
        (errors.wrong_epoch("a", "b"), Code.UNAVAILABLE, Reason.WRONG_EPOCH, {"RetryInfo"}, "1"),
        (errors.superseded(2), Code.ABORTED, Reason.SUPERSEDED, set(), "-1"),
        (errors.replica_lost([0], "died"), Code.UNAVAILABLE, Reason.REPLICA_LOST, {"RetryInfo"}, "1"),
        (errors.replica_lost([3, 0], "died"), Code.UNAVAILABLE, Reason.PARTIAL_OUTPUT, {"PartialOutput"}, "-1"),
        (errors.deadline("prefill"), Code.DEADLINE_EXCEEDED, Reason.DEADLINE_EXCEEDED, set(), "-1"),
        (errors.internal("abc"), Code.INTERNAL, Reason.INTERNAL, set(), "-1"),
    ],
    ids=lambda value: value.reason if isinstance(value, StatusError) else "",
)
def test_row_of_the_error_table(
    error: StatusError, code: grpc.StatusCode, reason: Reason, kinds: set[str], pushback: str
) -> None:
    found = details(error)
    info = found.pop("ErrorInfo")
    assert (error.code, error.reason) == (code, reason)
    assert (info.reason, info.domain) == (reason, ERROR_DOMAIN)
    assert set(found) == kinds
    assert dict(error.trailing_metadata())[PUSHBACK_KEY] == pushback


def test_partial_output_tells_the_count_of_each_choice() -> None:
    found = details(errors.replica_lost([3, 0, 7], "died"))
    assert list(found["PartialOutput"].tokens_per_choice) == [3, 0, 7]
    assert found["ErrorInfo"].metadata["tokens"] == "3,0,7"


def test_deadline_tells_the_stage_and_internal_the_incident() -> None:
    assert details(errors.deadline("queue"))["ErrorInfo"].metadata["stage"] == "queue"
    assert details(errors.internal("abc"))["ErrorInfo"].metadata["incident"] == "abc"


def test_all_violations_are_counted_and_the_first_ones_listed() -> None:
    error = errors.bad_fields([(f"field{i}", "is wrong") for i in range(40)])
    found = details(error)
    listed = found["BadRequest"].field_violations
    assert [v.field for v in listed] == [f"field{i}" for i in range(MAX_VIOLATIONS)]
    assert found["ErrorInfo"].metadata["violations"] == "40"
    assert "39 more" in error.message


@given(
    st.lists(st.tuples(st.text(max_size=300), st.text(max_size=3000)), min_size=1, max_size=40),
    st.text(max_size=5000),
)
def test_status_stays_small_whatever_it_holds(violations: list[tuple[str, str]], text: str) -> None:
    made = [
        errors.bad_fields(violations),
        errors.out_of_range(violations[0][0], violations[0][1]),
        errors.model_not_found(text, [name for name, _ in violations]),
        errors.already_exists(text),
        errors.wrong_epoch(text, text),
        errors.quota_exceeded(text, text, 1.0),
        errors.replica_lost([1] * 1000, text),
    ]
    for error in made:
        raw = error.to_rpc_status().SerializeToString()
        assert len(raw) <= MAX_STATUS_BYTES
        assert len(base64.b64encode(raw)) < 4096
        assert "ErrorInfo" in details(error), "the reason must survive the cut"


def test_lone_surrogate_does_not_break_a_status() -> None:
    assert errors.model_not_found("\ud800", []).trailing_metadata()
