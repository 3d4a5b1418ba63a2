"""Statuses that no well-behaved server sends still become exceptions."""

from __future__ import annotations

import grpc
from google.protobuf.any_pb2 import Any
from google.rpc import error_details_pb2, status_pb2

import pagemill
from pagemill.status import DETAILS_KEY, PUSHBACK_KEY, error_from_status

CODE = grpc.StatusCode


def trailers(*details: object) -> list[tuple[str, str | bytes]]:
    status = status_pb2.Status()
    for detail in details:
        status.details.add().Pack(detail)
    return [(DETAILS_KEY, status.SerializeToString())]


def test_every_code_has_an_exception_that_carries_it() -> None:
    for code in CODE:
        error = error_from_status(code, "")
        assert isinstance(error, pagemill.PagemillError)
        assert error.code is code
        assert str(error), "a status without a message still says something"


def test_details_that_cannot_be_read_are_left_out() -> None:
    error = error_from_status(CODE.INVALID_ARGUMENT, "bad", [(DETAILS_KEY, b"\xff\xff\xff")])
    assert isinstance(error, pagemill.InvalidRequest)
    assert error.details == ()
    assert error.violations == ()


def test_a_detail_of_an_unknown_type_is_kept_packed() -> None:
    status = status_pb2.Status(details=[Any(type_url="type.googleapis.com/other.Thing", value=b"x")])
    error = error_from_status(CODE.INTERNAL, "x", [(DETAILS_KEY, status.SerializeToString())])
    assert isinstance(error.details[0], Any)


def test_the_pushback_stands_in_for_retry_info() -> None:
    assert error_from_status(CODE.UNAVAILABLE, "x", [(PUSHBACK_KEY, "1500")]).retry_after == 1.5
    assert error_from_status(CODE.UNAVAILABLE, "x", [(PUSHBACK_KEY, "-1")]).retry_after is None
    assert error_from_status(CODE.UNAVAILABLE, "x", [(PUSHBACK_KEY, "soon")]).retry_after is None
    info = error_details_pb2.RetryInfo()
    info.retry_delay.FromMilliseconds(250)
    assert error_from_status(CODE.UNAVAILABLE, "x", [*trailers(info), (PUSHBACK_KEY, "9")]).retry_after == 0.25


def test_a_resource_that_is_no_model_is_just_not_found() -> None:
    resource = error_details_pb2.ResourceInfo(resource_type="replica", resource_name="replica-9")
    error = error_from_status(CODE.NOT_FOUND, "x", trailers(resource))
    assert type(error) is pagemill.NotFound
    assert error.resource == "replica-9"


def test_the_reason_and_its_facts_are_kept() -> None:
    info = error_details_pb2.ErrorInfo(reason="SOMETHING_NEW", domain="pagemill", metadata={"a": "b"})
    error = error_from_status(CODE.ABORTED, "x", trailers(info))
    assert error.reason == "SOMETHING_NEW"
    assert error.metadata == {"a": "b"}
