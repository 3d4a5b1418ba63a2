"""Whether a new request may come in at all."""

from __future__ import annotations

from pagemill_common import errors
from pagemill_replica.front.drain import Drain
from pagemill_replica.front.link import EngineLink
from pagemill_replica.front.state import ReplicaView

_RETRY_SECONDS = 1.0


class Gate:
    """Answers for the state of the replica, not for its room: that is the ledger's."""

    def __init__(self, view: ReplicaView, drain: Drain) -> None:
        self._view = view
        self._drain = drain

    def pass_through(self) -> EngineLink:
        """The way to the engine. Raises UNAVAILABLE: DRAINING, REPLICA_LOST, or NO_REPLICA while the model loads."""
        if self._drain.refusing:
            raise errors.draining(_RETRY_SECONDS)
        link = self._view.link
        if link is None:
            raise errors.no_replica(_RETRY_SECONDS, "the model is loading")
        if link.lost:
            raise errors.replica_lost([0], link.lost)
        return link
