"""Whose id is live."""

from __future__ import annotations

import contextlib

import grpc
import pytest

from pagemill_common.errors import StatusError
from pagemill_router.servicer.live_ids import LiveIds, previous_attempts


def test_a_live_id_is_refused_and_a_finished_one_is_free() -> None:
    live = LiveIds()
    with live.claim("a"):
        with pytest.raises(StatusError) as refused, live.claim("a"):
            pass
        assert refused.value.code is grpc.StatusCode.ALREADY_EXISTS
        with live.claim("b"):
            assert len(live) == 2
    assert len(live) == 0
    with live.claim("a"):
        pass


def test_grpcs_retry_stands_beside_the_attempt_whose_end_is_not_noticed_yet() -> None:
    live = LiveIds()
    with live.claim("a"):
        with live.claim("a", previous_attempts=1):
            assert len(live) == 2
        with pytest.raises(StatusError), live.claim("a"):
            pass
    assert len(live) == 0


@pytest.mark.parametrize(("said", "run"), [(0, 1), (1, 2), (4, 5), (9999, 5)])
def test_a_retry_stands_beside_as_many_attempts_as_it_says_and_never_more_than_grpc_makes(said: int, run: int) -> None:
    live = LiveIds()
    with contextlib.ExitStack() as held:
        for _ in range(run):
            held.enter_context(live.claim("a", previous_attempts=said))
        with pytest.raises(StatusError), live.claim("a", previous_attempts=said):
            pass
        assert len(live) == run
    assert len(live) == 0


@pytest.mark.parametrize(
    ("value", "count"),
    [
        (None, 0),
        ("0", 0),
        ("3", 3),
        (b"2", 2),
        ("-1", 0),
        ("", 0),
        ("x", 0),
        ("\u0664", 0),
        (b"\xff", 0),
        ("9" * 9999, 0),
    ],
)
def test_only_a_number_counts_as_earlier_attempts(value: str | bytes | None, count: int) -> None:
    assert previous_attempts(value) == count


def test_an_id_is_free_again_after_an_error() -> None:
    live = LiveIds()
    with pytest.raises(RuntimeError), live.claim("a"):
        raise RuntimeError
    with live.claim("a"):
        pass
