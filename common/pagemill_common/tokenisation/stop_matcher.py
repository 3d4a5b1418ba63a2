"""Finds stop strings in text that comes in pieces, and holds back only what could still become one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

__all__ = ["StopHit", "StopMatcher"]


@dataclass(frozen=True, slots=True)
class StopHit:
    """A stop string found."""

    string: str
    start: int
    """Characters of the whole text before it."""
    end: int
    """Characters of the whole text up to and with its last."""


def _failure_table(pattern: str) -> list[int]:
    """Knuth, Morris and Pratt 1977: entry j is the longest proper border of the first j characters."""
    table = [0] * (len(pattern) + 1)
    border = 0
    for index in range(1, len(pattern)):
        while border and pattern[index] != pattern[border]:
            border = table[border]
        if pattern[index] == pattern[border]:
            border += 1
        table[index + 1] = border
    return table


class StopMatcher:
    """One automaton for each stop string, fed character by character: constant work a character, whatever the
    strings' lengths.

    The first string to be complete wins; of several that end at one character the longest, which began earliest,
    wins. That makes the result independent of how the text was cut.
    """

    __slots__ = ("_first_chars", "_seen", "_states", "_strings", "_tables")

    def __init__(self, strings: Iterable[str]) -> None:
        # Longest first: of strings that end together the one that began earliest is met first.
        unique: Sequence[str] = sorted({s for s in strings if s}, key=lambda s: (-len(s), s))
        self._strings = unique
        self._tables = [_failure_table(s) for s in unique]
        self._states = [0] * len(unique)
        self._first_chars = frozenset(s[0] for s in unique)
        self._seen = 0

    @property
    def held(self) -> int:
        """Length of the longest end of the text that begins a stop string: what must not be shown so far."""
        return max(self._states, default=0)

    def feed(self, text: str, *, honoured: bool = True) -> StopHit | None:
        """Takes more text; the first hit, with nothing after it taken, or None. With `honoured` false hits are
        passed over.
        """
        if not any(self._states) and self._first_chars.isdisjoint(text):
            self._seen += len(text)
            return None
        for char in text:
            self._seen += 1
            hit = self._step(char, honoured)
            if hit is not None:
                return StopHit(hit, self._seen - len(hit), self._seen)
        return None

    def _step(self, char: str, honoured: bool) -> str | None:
        states, tables = self._states, self._tables
        hit: str | None = None
        for index, string in enumerate(self._strings):
            state = states[index]
            while state and string[state] != char:
                state = tables[index][state]
            if string[state] == char:
                state += 1
            if state == len(string):
                if honoured and hit is None:
                    hit = string
                state = tables[index][state]
            states[index] = state
        return hit
