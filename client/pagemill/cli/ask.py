"""`pagemill generate`: one question, streamed."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from pagemill.aio import AsyncClient
from pagemill.aio_stream import AsyncGenerateStream
from pagemill.answer import Chunk, Finished, Started
from pagemill.cli import options as o
from pagemill.cli.calls import call
from pagemill.cli.console import counted, note, print_json, write_text
from pagemill.options import ChatTurn, GenerateOptions
from pagemill.stream import AnswerView


def generate(
    prompt: Annotated[str, typer.Argument(help="The prompt; - reads it from stdin.", show_default=False)],
    target: o.Target = None,
    chat: o.Chat = False,
    system: o.SystemOfChat = None,
    model: o.Model = None,
    max_tokens: o.MaxTokens = None,
    min_tokens: o.MinTokens = None,
    stop: o.Stop = None,
    stop_token_id: o.StopTokenIds = None,
    include_stop: o.IncludeStop = None,
    ignore_end_of_text: o.IgnoreEnd = None,
    temperature: o.Temperature = None,
    top_k: o.TopK = None,
    top_p: o.TopP = None,
    min_p: o.MinP = None,
    repetition_penalty: o.RepetitionPenalty = None,
    frequency_penalty: o.FrequencyPenalty = None,
    presence_penalty: o.PresencePenalty = None,
    seed: o.Seed = None,
    skip_special_tokens: o.SkipSpecial = None,
    add_special_tokens: o.AddSpecial = None,
    truncate_prompt: o.TruncatePrompt = None,
    request_id: o.RequestId = None,
    timeout: o.Timeout = None,
    json: o.Json = False,
    stats: Annotated[bool, typer.Option("--stats", help="Say on stderr how fast it was.")] = False,
) -> None:
    """Generate text and stream it.

    With --json, one line for each event: `started`, `delta` (index, text, token_ids, position), `finished`; an
    error is a line with `error`.

    Ctrl-C cancels the answer on the server.
    """
    text = sys.stdin.read() if prompt == "-" else prompt
    asked = o.given(
        model=model,
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        stop=stop,
        stop_token_ids=stop_token_id,
        include_stop=include_stop,
        ignore_end_of_text=ignore_end_of_text,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        frequency_penalty=frequency_penalty,
        presence_penalty=presence_penalty,
        seed=seed,
        skip_special_tokens=skip_special_tokens,
        add_special_tokens=add_special_tokens,
        truncate_prompt=truncate_prompt,
        request_id=request_id,
        timeout=timeout,
    )
    turns = o.chat_messages(text, system) if chat or system else None
    summary = call(target, lambda client: answer(client, text, turns, asked, as_json=json))
    if stats:
        note(summary)


async def answer(
    client: AsyncClient,
    prompt: str,
    messages: Sequence[ChatTurn] | None,
    asked: GenerateOptions,
    *,
    as_json: bool = False,
) -> str:
    """Asks with the messages, or with the bare prompt where there are none, and shows the answer; says how fast."""
    pace = Pace(time.monotonic)
    stream = client.generate(None if messages else prompt, messages=messages, **asked)
    async with stream:
        await show(stream, pace, as_json=as_json)
    return pace.summary(stream)


async def show(stream: AsyncGenerateStream, pace: Pace, *, as_json: bool) -> None:
    """Writes an answer as it comes: text, or JSON lines. The text ends with a newline whatever happens."""
    if as_json:
        await _show_json(stream, pace)
        return
    last = "\n"
    try:
        async for chunk in stream:
            pace.saw(chunk)
            write_text(chunk.text)
            last = chunk.text[-1:] or last
    finally:
        if not last.endswith("\n"):
            write_text("\n")


class Pace:
    """How fast an answer comes, as the caller sees it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._begin = clock()
        self._first: float | None = None
        self._last = self._begin
        self._first_tokens = 0
        self._tokens = 0

    def saw(self, chunk: Chunk) -> None:
        """A chunk has arrived."""
        self._last = self._clock()
        if self._first is None:
            self._first = self._last
            self._first_tokens = len(chunk.token_ids)
        self._tokens += len(chunk.token_ids)

    @property
    def time_to_first_token(self) -> float | None:
        """Seconds from the call to the first output."""
        return None if self._first is None else self._first - self._begin

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens a second after the first output; None where there is too little to tell."""
        if self._first is None or self._last <= self._first or self._tokens <= self._first_tokens:
            return None
        return (self._tokens - self._first_tokens) / (self._last - self._first)

    def summary(self, stream: AnswerView) -> str:
        """One line: time to first token, tokens a second, token counts, replica, why it ended."""
        parts = []
        if self.time_to_first_token is not None:
            parts.append(f"first token after {self.time_to_first_token * 1000:.0f} ms")
        if self.tokens_per_second is not None:
            parts.append(f"{self.tokens_per_second:.1f} tokens/s")
        if stream.finished is not None:
            usage = stream.usage
            cached = f" ({usage.cached_tokens} cached)" if usage.cached_tokens else ""
            parts.append(f"{counted(usage.prompt_tokens, 'prompt token')}{cached}, {usage.completion_tokens} generated")
            parts.append(str(stream.finished.reason).replace("_", " "))
        if stream.replicas:
            parts.append("replica " + " then ".join(stream.replicas))
        return " · ".join(parts)


async def _show_json(stream: AsyncGenerateStream, pace: Pace) -> None:
    said_started = False
    async for chunk in stream:
        pace.saw(chunk)
        if not said_started and stream.started is not None:
            print_json(started_json(stream.started))
            said_started = True
        print_json(
            {
                "event": "delta",
                "index": chunk.index,
                "text": chunk.text,
                "token_ids": list(chunk.token_ids),
                "position": chunk.position,
            }
        )
    if not said_started and stream.started is not None:
        print_json(started_json(stream.started))
    request_id = stream.started.request_id if stream.started is not None else ""
    for choice in stream.choices:
        if choice.finished is not None:
            print_json(finished_json(choice.finished, request_id))


def started_json(started: Started) -> dict[str, Any]:
    """The `started` line."""
    return {
        "event": "started",
        "request_id": started.request_id,
        "model": started.model,
        "replica": started.replica,
        "prompt_tokens": started.prompt_tokens,
        "cached_tokens": started.cached_tokens,
        "seed": started.seed,
    }


def finished_json(finished: Finished, request_id: str) -> dict[str, Any]:
    """The `finished` line; times in seconds."""
    return {
        "event": "finished",
        "request_id": request_id,
        "index": finished.index,
        "reason": str(finished.reason),
        "matched_string": finished.matched_string or None,
        "matched_token_id": finished.matched_token_id,
        "prompt_tokens": finished.usage.prompt_tokens,
        "cached_tokens": finished.usage.cached_tokens,
        "completion_tokens": finished.usage.completion_tokens,
        "queue_seconds": finished.timing.queue,
        "prefill_seconds": finished.timing.prefill,
        "decode_seconds": finished.timing.decode,
        "approximate": finished.approximate,
    }
