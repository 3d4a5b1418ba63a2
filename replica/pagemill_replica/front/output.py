"""The unread output of one stream: merged while the reader is behind, bounded.

    engine report -> push() ... push() -> [unread] -> take() by the stream's writer -> one Delta

`push` never waits, so that one slow reader holds back nobody. Whatever has gathered while a write was under way leaves
in one piece; a reader that keeps up gets every token alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

M = TypeVar("M")

TOKEN_BYTES = 5
"""What an unread token id counts for: its largest usual size on the wire."""


@dataclass(frozen=True, slots=True)
class Piece:
    """New output since the last piece."""

    text: str
    token_ids: list[int]
    position: int
    """Output tokens before it."""
    text_offset: int
    """UTF-8 bytes of text before it."""


@dataclass(slots=True)
class _Unread:
    texts: list[str] = field(default_factory=list)
    text_bytes: int = 0
    token_ids: list[int] = field(default_factory=list)


class OutputBuffer:
    """Holds what the writer has not yet taken.

    `limit` is in bytes; `position` (tokens) and `text_offset` (bytes) count what was taken.
    """

    def __init__(self, limit: int, *, position: int = 0, text_offset: int = 0) -> None:
        self._limit = limit
        self._unread = _Unread()
        self._changed = asyncio.Event()
        self._failure: Exception | None = None
        self._complete = False
        self._write: asyncio.Timeout | None = None
        self.position = position
        self.text_offset = text_offset

    @property
    def overfull(self) -> bool:
        """More than the limit lies unread."""
        unread = self._unread
        return unread.text_bytes + TOKEN_BYTES * len(unread.token_ids) > self._limit

    @property
    def closed(self) -> bool:
        """Nothing more will be pushed."""
        return self._complete or self._failure is not None

    def push(self, text: str, token_ids: list[int]) -> None:
        """Adds output. Ignored once closed."""
        if self.closed or not (text or token_ids):
            return
        self._unread.texts.append(text)
        self._unread.text_bytes += len(text.encode())
        self._unread.token_ids += token_ids
        self._changed.set()

    def complete(self) -> None:
        """No more output: the writer gets what is left and then None."""
        if not self.closed:
            self._complete = True
            self._changed.set()

    def fail(self, failure: Exception) -> None:
        """Ends the stream: the writer gets `failure` in place of what is left. The first call counts."""
        if not self.closed:
            self._failure = failure
            self._unread = _Unread()
            self._changed.set()
            if self._write is not None:
                self._write.reschedule(0.0)

    def expire(self, failure: Exception) -> None:
        """As `fail`, also where the output is complete and the caller has not yet read it all."""
        self._complete = False
        self.fail(failure)

    async def deliver(self, write: Callable[[M], Awaitable[object]], message: M) -> None:
        """Writes a message made of what was taken. Raises what `fail` was given, also where that comes meanwhile.

        A caller that has stopped reading would hold the write, and all that waits for its end, for ever.
        """
        if self._failure is not None:
            raise self._failure
        try:
            async with asyncio.timeout(None) as self._write:
                await write(message)
        except TimeoutError:
            if self._failure is None:
                raise
            raise self._failure from None
        finally:
            self._write = None

    def discard(self) -> None:
        """Nobody reads any more: what is left goes, and so does what comes."""
        self._complete = True
        self._unread = _Unread()

    async def take(self) -> Piece | None:
        """Waits for output and returns all of it; None at the end. Raises what `fail` was given."""
        while True:
            self._changed.clear()
            if self._failure is not None:
                raise self._failure
            unread = self._unread
            if unread.texts:
                self._unread = _Unread()
                return self._piece(unread)
            if self._complete:
                return None
            await self._changed.wait()

    def _piece(self, unread: _Unread) -> Piece:
        piece = Piece("".join(unread.texts), unread.token_ids, self.position, self.text_offset)
        self.position += len(unread.token_ids)
        self.text_offset += unread.text_bytes
        return piece
