"""Who may use a name, and who takes over from whom."""

from __future__ import annotations

from dataclasses import dataclass, field

import grpc
import pytest

from pagemill_common.errors import StatusError
from pagemill_replica.front.registry import CallName, Registry


@dataclass(eq=False)
class Request:
    name: CallName
    superseded_by: list[int] = field(default_factory=list)

    def supersede(self, attempt: int) -> None:
        self.superseded_by.append(attempt)


def test_second_direct_call_with_a_live_id_is_refused_and_the_first_untouched() -> None:
    registry: Registry[Request] = Registry()
    first = Request(CallName("a"))
    registry.claim(first)
    with pytest.raises(StatusError) as caught:
        registry.claim(Request(CallName("a")))
    assert caught.value.code is grpc.StatusCode.ALREADY_EXISTS
    assert first.superseded_by == []
    assert len(registry) == 1


def test_id_is_free_again_after_release() -> None:
    registry: Registry[Request] = Registry()
    first = Request(CallName("a"))
    registry.claim(first)
    registry.release(first)
    registry.release(first)
    registry.claim(Request(CallName("a")))
    assert len(registry) == 1


def test_grpc_own_retry_takes_over() -> None:
    registry: Registry[Request] = Registry()
    first, again = Request(CallName("a")), Request(CallName("a", replaces=True))
    registry.claim(first)
    registry.claim(again)
    assert first.superseded_by == [1]
    registry.release(first)
    assert len(registry) == 1, "the one that was replaced must not free the name of its successor"


@pytest.mark.parametrize("attempt", [1, 2])
def test_lower_or_equal_attempt_is_refused(attempt: int) -> None:
    registry: Registry[Request] = Registry()
    holder = Request(CallName("a", "call", 2))
    registry.claim(holder)
    with pytest.raises(StatusError) as caught:
        registry.claim(Request(CallName("a", "call", attempt)))
    assert caught.value.reason == "SUPERSEDED"
    assert holder.superseded_by == []


def test_higher_attempt_supersedes() -> None:
    registry: Registry[Request] = Registry()
    lower, higher = Request(CallName("a", "call", 1)), Request(CallName("a", "call", 3))
    registry.claim(lower)
    registry.claim(higher)
    assert lower.superseded_by == [3]
    assert len(registry) == 1


def test_two_calls_of_routers_may_share_an_id() -> None:
    registry: Registry[Request] = Registry()
    for name in (CallName("a", "one"), CallName("a", "two"), CallName("a")):
        registry.claim(Request(name))
    assert len(registry) == 3
