"""Typed access to untrusted mappings (config.json, GGUF metadata) with errors that name file and key."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pagemill_replica.checkpoint.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class Fields:
    """A mapping and the file it came from. A value of None counts as absent."""

    file: Path
    values: Mapping[str, object]
    label: str = ""
    """What errors put before a key, such as `rope_scaling.`."""

    def integer(self, key: str, default: int | None = None) -> int:
        """A whole number; `default` None makes it required."""
        value = self.values.get(key)
        if value is None:
            if default is None:
                raise self._lacks(key)
            return default
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(key, value, "a whole number")
        return value

    def count(self, key: str, most: int) -> int:
        """A required whole number from 1 to `most`: for what is allocated before a file's size can bound it."""
        value = self.integer(key)
        if not 1 <= value <= most:
            raise self._wrong(key, value, f"between 1 and {most}")
        return value

    def optional_integer(self, key: str) -> int | None:
        """A whole number, or None where absent."""
        return None if self.values.get(key) is None else self.integer(key)

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number; `default` None makes it required."""
        value = self.values.get(key)
        if value is None:
            if default is None:
                raise self._lacks(key)
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not _is_finite(value):
            raise self._wrong(key, value, "a finite number")
        return float(value)

    def optional_number(self, key: str) -> float | None:
        """A finite number, or None where absent."""
        return None if self.values.get(key) is None else self.number(key)

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self._wrong(key, value, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """A string; `default` None makes it required."""
        value = self.values.get(key)
        if value is None:
            if default is None:
                raise self._lacks(key)
            return default
        if not isinstance(value, str):
            raise self._wrong(key, value, "a string")
        return value

    def integers(self, key: str) -> tuple[int, ...]:
        """A whole number or a list of them; empty where absent."""
        value = self.values.get(key)
        if value is None:
            return ()
        items = value if isinstance(value, list) else [value]
        if any(isinstance(item, bool) or not isinstance(item, int) for item in items):
            raise self._wrong(key, value, "a whole number or a list of them")
        return tuple(items)

    def section(self, key: str) -> Fields | None:
        """A mapping inside this one, or None where absent."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self._wrong(key, value, "an object")
        return Fields(self.file, value, f"{self.label}{key}.")

    def _lacks(self, key: str) -> CheckpointError:
        return CheckpointError(self.file, f"lacks {self.label}{key}")

    def _wrong(self, key: str, value: object, wanted: str) -> CheckpointError:
        return CheckpointError(self.file, f"{self.label}{key} is {str(value)[:80]!r}; it must be {wanted}")


def read_head_dim(fields: Fields, key: str, hidden_size: int, heads: int, default: int | None = None) -> int:
    """The head size under `key`, else `default`, else the hidden size shared out evenly over the heads."""
    given = fields.optional_integer(key)
    if given is None:
        given = default
    if given is not None:
        return given
    if heads < 1 or hidden_size % heads:
        raise CheckpointError(
            fields.file, f"a hidden size of {hidden_size} cannot be shared by {heads} heads, and {key} is not given"
        )
    return hidden_size // heads


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # A whole number beyond float64.
        return False
