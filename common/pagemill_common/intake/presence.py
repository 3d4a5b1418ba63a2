"""Whether a field of a message is set, by a name that is data."""

from __future__ import annotations

from google.protobuf.message import Message

__all__ = ["is_set"]


def is_set(message: Message, name: str) -> bool:
    """Whether an `optional` or message field is set. Raises ValueError for a field without presence."""
    return message.HasField(name)
