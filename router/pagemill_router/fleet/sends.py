"""What this router has sent, or is about to send, and no replica has told of yet.

A replica's figures lag behind by up to a message; between a grant and the message that lists its id, the request is
only here. Keyed by `name:epoch`, so that a restarted replica owes nothing for its predecessor.
"""

from __future__ import annotations

from collections.abc import Iterable


class Sends:
    """Own requests that no state message has covered, in blocks."""

    def __init__(self) -> None:
        self._needs: dict[str, dict[str, int]] = {}

    def add(self, key: str, reservation_id: str, need: int) -> None:
        """A request was granted `need` blocks on the replica."""
        self._needs.setdefault(key, {})[reservation_id] = need

    def covered(self, key: str, reservation_ids: Iterable[str]) -> None:
        """The replica has told of these ids: its figures hold them, or they have ended."""
        needs = self._needs.get(key)
        if needs is None:
            return
        for reservation_id in reservation_ids:
            needs.pop(reservation_id, None)
        if not needs:
            del self._needs[key]

    def blocks(self, key: str) -> int:
        """Blocks on their way to the replica."""
        return sum(self._needs.get(key, {}).values())

    def forget(self, key: str) -> None:
        """The replica is gone."""
        self._needs.pop(key, None)

    def __len__(self) -> int:
        return sum(len(needs) for needs in self._needs.values())
