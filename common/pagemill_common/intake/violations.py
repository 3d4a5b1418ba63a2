"""Collects what is wrong with a request, so that a caller hears of all of it at once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from pagemill.ranges import Range
from pagemill_common import errors

__all__ = ["Violations"]

_MAX_LISTED = 100


@dataclass(slots=True)
class Violations:
    """Field paths and what is wrong with each, in the order found."""

    found: list[tuple[str, str]] = field(default_factory=list)
    unsupported: list[str] = field(default_factory=list)
    """Fields that are set but not supported."""

    def add(self, path: str, description: str) -> None:
        """One thing wrong. `path` is like `sampling.temperature` or `stop.strings[3]`."""
        self.found.append((path, description))

    def not_supported(self, path: str) -> None:
        """A field that is set, but not supported."""
        self.unsupported.append(path)

    def number(self, path: str, value: float, allowed: Range) -> None:
        """A number in a range; never NaN or infinite."""
        wrong = allowed.violation(value)
        if wrong is not None:
            self.add(path, wrong)

    def count(self, path: str, count: int, most: int) -> None:
        """At most so many entries."""
        if count > most:
            self.add(path, f"has {count} entries; at most {most} are allowed")

    def token(self, path: str, token_id: int, vocabulary_size: int) -> None:
        """A token id below the vocabulary's size."""
        if not 0 <= token_id < vocabulary_size:
            self.add(path, f"token id {token_id} is not in the vocabulary of {vocabulary_size} tokens")

    def tokens(self, path: str, token_ids: Iterable[int], vocabulary_size: int) -> None:
        """Token ids of a prompt. A prompt can be long and all wrong: past the first 100, one entry counts the rest."""
        wrong = [(index, token_id) for index, token_id in enumerate(token_ids) if token_id >= vocabulary_size]
        for index, token_id in wrong[:_MAX_LISTED]:
            self.token(f"{path}[{index}]", token_id, vocabulary_size)
        if len(wrong) > _MAX_LISTED:
            self.add(path, f"holds {len(wrong) - _MAX_LISTED} more ids outside the vocabulary")

    def raise_any(self) -> None:
        """Raises INVALID_ARGUMENT with all violations, else UNIMPLEMENTED for the first unsupported field."""
        if self.found:
            raise errors.bad_fields(self.found)
        if self.unsupported:
            raise errors.unimplemented(self.unsupported[0])
