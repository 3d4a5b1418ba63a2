"""Token ids to text, a piece at a time, equal to decoding the whole at once."""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from pagemill_common.tokenisation.token_bytes import TokenBytes

__all__ = ["TextStream", "decode"]

_Utf8Decoder = codecs.getincrementaldecoder("utf-8")


class TextStream:
    """Decodes tokens as they come.

    For any ids and any cuts, the joined results of `push` and the result of `finish` equal `decode` of all ids. A
    character whose bytes have not all come stays inside; `finish` turns what is left into U+FFFD. The bytes of the
    prompt are no part of this: output that begins inside a character begins with U+FFFD.

    `continues_text` keeps the first space, which SentencePiece's decoders drop at the start of a text.
    """

    __slots__ = ("_decoder", "_first", "_plain", "_skipped", "_strip_char", "_strip_left")

    def __init__(self, table: TokenBytes, *, skip_special_tokens: bool = True, continues_text: bool = False) -> None:
        self._plain = table.plain
        self._first: tuple[bytes, ...] | None = None if continues_text else table.first
        self._skipped = table.special if skip_special_tokens else frozenset[int]()
        self._strip_char = table.strip_char
        self._strip_left = 0 if continues_text else table.strip_count
        self._decoder = _Utf8Decoder("replace")

    def push(self, token_id: int) -> str:
        """The text that one more token completes; often empty or more than one character."""
        if token_id in self._skipped:
            return ""
        table, self._first = self._first or self._plain, None
        raw = table[token_id] if 0 <= token_id < len(table) else b""
        return self._strip(self._decoder.decode(raw))

    def finish(self) -> str:
        """What the unfinished character at the end shows as."""
        return self._strip(self._decoder.decode(b"", True))

    def _strip(self, text: str) -> str:
        while self._strip_left and text:
            if text[0] != self._strip_char:
                self._strip_left = 0
                break
            text = text[1:]
            self._strip_left -= 1
        return text


def decode(table: TokenBytes, token_ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
    """The text of all ids. Malformed UTF-8 shows as U+FFFD, one for each maximal malformed part."""
    skipped = table.special if skip_special_tokens else frozenset[int]()
    kept = [i for i in token_ids if i not in skipped]
    plain, size = table.plain, len(table.plain)
    parts = [plain[i] if 0 <= i < size else b"" for i in kept]
    if kept and 0 <= kept[0] < size:
        parts[0] = table.first[kept[0]]
    text = b"".join(parts).decode("utf-8", "replace")
    for _ in range(table.strip_count):
        text = text.removeprefix(table.strip_char)
    return text
