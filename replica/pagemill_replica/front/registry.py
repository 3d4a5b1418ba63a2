"""Which requests are live, by the names their callers know them by.

A direct caller's request is known by its id alone. A router's is known by (request id, call id): two calls may carry
one id, since ids are unique on one router only, and within a call a higher attempt takes over from a lower.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from pagemill_common import errors


@dataclass(frozen=True, slots=True)
class CallName:
    """What a request is known by."""

    request_id: str
    call_id: str = ""
    """Drawn by the router; empty for a direct caller."""
    attempt: int = 1
    replaces: bool = False
    """A direct call that gRPC itself repeats: it takes over rather than clash."""


class Supersedable(Protocol):
    """A live request that can be told that another has taken its place."""

    @property
    def name(self) -> CallName:
        """What it is known by."""
        ...

    def supersede(self, attempt: int) -> None:
        """Ends it: attempt `attempt` has taken over."""
        ...


R = TypeVar("R", bound=Supersedable)


class Registry(Generic[R]):
    """The live requests. `claim` and `release` bracket a request's life."""

    def __init__(self) -> None:
        self._live: dict[tuple[str, str], R] = {}

    def __len__(self) -> int:
        return len(self._live)

    def check(self, name: CallName) -> None:
        """Raises ALREADY_EXISTS or SUPERSEDED where `name` may not be claimed."""
        holder = self._live.get((name.request_id, name.call_id))
        if holder is None:
            return
        if not name.call_id and not name.replaces:
            raise errors.already_exists(name.request_id)
        if name.call_id and name.attempt <= holder.name.attempt:
            raise errors.superseded(holder.name.attempt)

    def claim(self, request: R) -> None:
        """Enters a request; ends the attempt it takes over from. Raises as `check`."""
        self.check(request.name)
        key = (request.name.request_id, request.name.call_id)
        holder = self._live.get(key)
        self._live[key] = request
        if holder is not None:
            holder.supersede(request.name.attempt)

    def release(self, request: R) -> None:
        """Removes a request, unless another has taken its name. Repeating it does nothing."""
        key = (request.name.request_id, request.name.call_id)
        if self._live.get(key) is request:
            del self._live[key]
