"""Tokens to the text a caller sees: whole characters, no stop strings, nothing held back without need."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from pagemill_common.tokenisation.model_tokenizer import ModelTokenizer
from pagemill_common.tokenisation.stop_matcher import StopHit, StopMatcher
from pagemill_common.tokenisation.text_stream import TextStream

__all__ = ["Detokeniser", "TextDelta"]


@dataclass(frozen=True, slots=True)
class TextDelta:
    """What one call brought."""

    text: str
    """New text, whole characters only."""
    stopped: str | None
    """The stop string that ended the text, or None."""
    tokens_used: int
    """Of the tokens given in this call, how many count: up to the one that completed the stop string, else all."""


class Detokeniser:
    """Incremental detokeniser and stop matcher of one choice.

    What has been shown after k tokens depends on those k tokens only, never on how they were grouped into calls.
    Without a stop, the joined texts of all calls equal `ModelTokenizer.decode` of all ids.

    - `stop_strings`: the first to be complete ends the text, from the token that completes it on and not before
      `min_tokens` tokens (one completed earlier is ordinary text).
    - `include_stop`: the stop string, or the text of the stop token, stays in the text.
    - `stop_token_ids`: tokens that end the text if they come last, by default the model's end-of-text tokens. Their
      text waits for the next call, so that `finish(last_is_stop_token=True)` can leave it out.
    - `continues_text`: the output goes on with the text of the prompt, so a first space that SentencePiece would
      drop stays.

    After `stopped` or `finish` further calls bring nothing.
    """

    __slots__ = (
        "_done",
        "_include_stop",
        "_matcher",
        "_min_tokens",
        "_shown",
        "_stop_ids",
        "_stream",
        "_text",
        "_tokens",
        "_waiting_id",
    )

    def __init__(
        self,
        tokenizer: ModelTokenizer,
        *,
        skip_special_tokens: bool = True,
        stop_strings: Collection[str] = (),
        include_stop: bool = False,
        min_tokens: int = 0,
        stop_token_ids: Collection[int] | None = None,
        continues_text: bool = False,
    ) -> None:
        table = tokenizer.byte_table
        self._stream = TextStream(table, skip_special_tokens=skip_special_tokens, continues_text=continues_text)
        self._matcher = StopMatcher(stop_strings)
        self._include_stop = include_stop
        self._min_tokens = min_tokens
        ids = frozenset(tokenizer.end_of_text_ids if stop_token_ids is None else stop_token_ids)
        # A skipped token has no text that could wait.
        self._stop_ids = ids - table.special if skip_special_tokens else ids
        self._waiting_id: int | None = None
        self._tokens = 0
        self._text = ""  # held back
        self._shown = 0  # characters shown
        self._done = False

    @property
    def tokens(self) -> int:
        """Tokens used so far."""
        return self._tokens

    def push(self, token_ids: Sequence[int]) -> TextDelta:
        """Takes new tokens, in order."""
        parts: list[str] = []
        for used, token_id in enumerate(token_ids):
            if self._done:
                return TextDelta("", None, 0)
            hit = self._take_waiting(parts)
            if hit is not None:
                return TextDelta("".join(parts), hit.string, used)
            self._tokens += 1
            if token_id in self._stop_ids:
                self._waiting_id = token_id
                continue
            hit = self._take(self._stream.push(token_id), parts)
            if hit is not None:
                return TextDelta("".join(parts), hit.string, used + 1)
        return TextDelta("".join(parts), None, len(token_ids))

    def finish(self, last_is_stop_token: bool = False) -> TextDelta:
        """Ends the text and shows what was held back; `tokens_used` is 0.

        `last_is_stop_token`: the last token given ended the text, and its own text stays out unless `include_stop`
        is set.
        """
        if self._done:
            return TextDelta("", None, 0)
        parts: list[str] = []
        hit: StopHit | None = None
        if self._include_stop or not last_is_stop_token:
            hit = self._take_waiting(parts)
        if hit is None:
            hit = self._take(self._stream.finish(), parts)
        if hit is None:
            parts.append(self._text)
        self._done = True
        self._waiting_id, self._text = None, ""
        return TextDelta("".join(parts), hit.string if hit else None, 0)

    def replay(self, token_ids: Sequence[int], text_bytes: int) -> TextDelta:
        """Takes tokens that were delivered before, with the first `text_bytes` bytes (UTF-8) of their text; the
        text that follows those.

        Raises ValueError where the tokens give less text than that or the cut falls inside a character: then they
        are not what was delivered.
        """
        delta = self.push(token_ids)
        raw = delta.text.encode()
        if text_bytes > len(raw):
            raise ValueError(f"{text_bytes} bytes of text were delivered, but the tokens give {len(raw)}")
        try:
            rest = raw[text_bytes:].decode()
        except UnicodeDecodeError:
            raise ValueError(f"byte {text_bytes} of the text is inside a character") from None
        return TextDelta(rest, delta.stopped, delta.tokens_used)

    def _take_waiting(self, parts: list[str]) -> StopHit | None:
        if self._waiting_id is None:
            return None
        token_id, self._waiting_id = self._waiting_id, None
        return self._take(self._stream.push(token_id), parts)

    def _take(self, text: str, parts: list[str]) -> StopHit | None:
        """Adds what may be shown to `parts`. A hit ends the text."""
        if not text:
            return None
        hit = self._matcher.feed(text, honoured=self._tokens >= self._min_tokens)
        held = self._text + text
        if hit is None:
            cut = len(held) - self._matcher.held
        else:
            cut = (hit.end if self._include_stop else hit.start) - self._shown
            self._done = True
        parts.append(held[:cut])
        self._text = held[cut:]
        self._shown += cut
        return hit
