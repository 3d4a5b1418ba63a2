"""Names of the Redis keys of one pool. All share the hash tag `{pool}`, so that a cluster keeps them on one node."""

from __future__ import annotations

import re

_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")


def check_name(field: str, value: str) -> str:
    """Returns `value` when it may be part of a key: 1 to 128 letters, digits, dots, dashes and underscores.

    Raises ValueError naming `field` otherwise: a colon or a brace would let two names meet in one key.
    """
    if not _NAME.fullmatch(value):
        raise ValueError(f"{field} must be 1 to 128 letters, digits, '.', '_' or '-', not {value!r}")
    return value


def replica_key(name: str, epoch: str) -> str:
    """The identity of one life of a replica: `name:epoch`. A restarted replica is another one."""
    return f"{check_name('name', name)}:{check_name('epoch', epoch)}"


def check_replica_key(value: str) -> str:
    """Returns `value` when it has the form of `replica_key`; raises ValueError otherwise."""
    name, separator, epoch = value.partition(":")
    if not separator or not _NAME.fullmatch(name) or not _NAME.fullmatch(epoch):
        raise ValueError(f"replica must be 'name:epoch', not {value!r}")
    return value


class Keys:
    """The keys of one pool."""

    def __init__(self, pool: str) -> None:
        self.pool = check_name("pool", pool)
        self._prefix = f"pagemill:{{{pool}}}:"
        self.facts = self._prefix + "facts"
        """Hash: block_size and model_id that every replica of the pool must have."""
        self.roster = self._prefix + "roster"
        """Sorted set: replica key, scored by the time of its last heartbeat in milliseconds."""

    def record(self, replica: str) -> str:
        """Hash: what a replica last said of itself."""
        return f"{self._prefix}record:{replica}"

    def pending(self, replica: str) -> str:
        """Hash: reservation id to '<expiry ms> <need>' for reservations that the replica has not seen."""
        return f"{self._prefix}pending:{replica}"

    def reservation(self, reservation_id: str) -> str:
        """String: '<expiry ms> <need> <replica key>', or a tombstone."""
        return f"{self._prefix}id:{reservation_id}"
