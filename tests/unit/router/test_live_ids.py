"""Whose id is live."""

from __future__ import annotations

import grpc
import pytest

from pagemill_common.errors import StatusError
from pagemill_router.servicer.live_ids import LiveIds


def test_a_live_id_is_refused_and_a_finished_one_is_free() -> None:
    live = LiveIds()
    with live.claim("a", retry=False):
        with pytest.raises(StatusError) as refused, live.claim("a", retry=False):
            pass
        assert refused.value.code is grpc.StatusCode.ALREADY_EXISTS
        with live.claim("b", retry=False):
            assert len(live) == 2
    assert len(live) == 0
    with live.claim("a", retry=False):
        pass


def test_grpcs_retry_stands_beside_the_attempt_whose_end_is_not_noticed_yet() -> None:
    live = LiveIds()
    with live.claim("a", retry=False):
        with live.claim("a", retry=True):
            assert len(live) == 2
        with pytest.raises(StatusError), live.claim("a", retry=False):
            pass
    assert len(live) == 0


def test_an_id_is_free_again_after_an_error() -> None:
    live = LiveIds()
    with pytest.raises(RuntimeError), live.claim("a", retry=False):
        raise RuntimeError
    with live.claim("a", retry=False):
        pass
