"""Breaks an answer between words at a terminal's edge, as it comes.

Nothing is held back: a word that turns out not to fit is taken from the end of the line and begins the next.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable

from rich.cells import cell_len

from pagemill.aio_stream import AsyncGenerateStream
from pagemill.cli.ask import Pace, show
from pagemill.cli.console import out, visible

TAB = 8


class Wrapper:
    """Turns pieces of plain text into what a terminal of so many columns must get, its cursor at a line's begin."""

    def __init__(self, columns: Callable[[], int]) -> None:
        self._columns = columns
        self._column = 0
        self._word = ""
        """The word at the cursor, where it begins after a space."""
        self._begin = 0
        """Its first column."""

    def feed(self, text: str) -> str:
        """What to write for this piece."""
        return "".join(map(self._take, text))

    def _take(self, character: str) -> str:
        if character == "\n":
            return self._enter(0, character)
        if character in " \t":
            return self._space(character)
        cells = cell_len(character)
        if self._column + cells <= self._columns():
            self._word += character
            self._column += cells
            return character
        moved = self._word + character
        if self._begin > 0 and cell_len(moved) <= self._columns():
            # To the word's first column, and away with the rest of the line.
            return self._enter(cell_len(moved), f"\x1b[{self._begin + 1}G\x1b[K\n{moved}", moved)
        return self._enter(cells, character)  # Wider than a line: the terminal breaks it.

    def _space(self, character: str) -> str:
        cells = TAB - self._column % TAB if character == "\t" else 1
        if self._column + cells > self._columns():
            return self._enter(0, "\n")
        self._column += cells
        self._begin, self._word = self._column, ""
        return character

    def _enter(self, column: int, written: str, word: str = "") -> str:
        self._column, self._begin, self._word = column, 0, word
        return written


async def show_wrapped(stream: AsyncGenerateStream, pace: Pace, *, as_json: bool) -> None:
    """Shows an answer as `show` does, on a terminal with whole words."""
    console = out()
    if as_json or not console.is_terminal or console.is_dumb_terminal:
        await show(stream, pace, as_json=as_json)
        return
    wrapper = Wrapper(lambda: shutil.get_terminal_size().columns)
    last = "\n"
    try:
        async for chunk in stream:
            pace.saw(chunk)
            _write(wrapper.feed(visible(chunk.text)))
            last = chunk.text[-1:] or last
    finally:
        if last != "\n":
            _write("\n")


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
