"""`pagemill chat`: a conversation in the terminal."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from typing import Annotated

import typer

from pagemill.aio import AsyncClient
from pagemill.aio_stream import AsyncGenerateStream
from pagemill.cli import options as o
from pagemill.cli.ask import Pace
from pagemill.cli.calls import Connection
from pagemill.cli.console import complain, err, note, print_json
from pagemill.cli.failures import advice, as_json, headline
from pagemill.cli.temperature import Temperature, for_talking
from pagemill.cli.wrapping import show_wrapped
from pagemill.errors import PagemillError, TooLong
from pagemill.options import GenerateOptions

HELP = """/reset         forget the conversation
/system TEXT   set the system message, and forget the conversation
/system        show the system message
/exit          leave (Ctrl-D too)
/help          this text
Ctrl-C cancels the answer, not the session."""

ALONE = ("/exit", "/quit", "/reset", "/help")
"""Commands that take no text."""


def chat(
    target: o.Target = None,
    system: o.System = None,
    model: o.Model = None,
    max_tokens: o.MaxTokens = None,
    temperature: Temperature = None,
    top_k: o.TopK = None,
    top_p: o.TopP = None,
    min_p: o.MinP = None,
    repetition_penalty: o.RepetitionPenalty = None,
    seed: o.Seed = None,
    stop: o.Stop = None,
    timeout: o.Timeout = None,
    json: o.Json = False,
    stats: Annotated[bool, typer.Option("--stats", help="Say after each answer how fast it was.")] = False,
) -> None:
    """Talk with a model, several turns. Ctrl-C cancels the answer, not the session; /help lists the commands.

    Reads one message a line, so it works in a pipe too.
    """
    asked = o.given(
        model=model,
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        seed=seed,
        stop=stop,
        timeout=timeout,
    )
    with Connection(target) as connection:
        served = connection.ask(lambda client: client.model(model))
        session = Session(connection, for_talking(asked, served), system, as_json=json, stats=stats)
        interactive = sys.stdin.isatty() and not json
        if interactive:
            _enable_line_editing()
            context = f"{served.max_context_tokens} tokens of context"
            note(f"{served.name}, {context}, at {connection.target}. /help for help.")
        while session.turn(interactive):
            pass


class Session:
    """The conversation so far, and what the user does with it."""

    def __init__(
        self, connection: Connection, asked: GenerateOptions, system: str | None, *, as_json: bool, stats: bool
    ) -> None:
        self._connection = connection
        self._asked = asked
        self._system = system
        self._as_json = as_json
        self._stats = stats
        self.messages: list[dict[str, str]] = []
        """Alternating user and assistant messages."""

    def turn(self, interactive: bool) -> bool:
        """Reads a line and acts on it; False when the session is over. Ctrl-C at any moment leaves it going."""
        try:
            return self._act(_read_line(interactive).strip())
        except EOFError:
            return False
        except KeyboardInterrupt:
            note("/exit or Ctrl-D leaves.")
            return True

    def _act(self, text: str) -> bool:
        if text.startswith("/"):
            return self.command(text)
        if text:
            self.say(text)
        return True

    def command(self, text: str) -> bool:
        """Acts on a slash command; False when the session is over."""
        name, _, rest = text.partition(" ")
        match name:
            case _ if rest.strip() and name in ALONE:
                note(f"{name} takes no text; nothing done.")
            case "/exit" | "/quit":
                return False
            case "/reset":
                self.messages.clear()
                note("forgotten.")
            case "/system" if rest.strip():
                self._system = rest.strip()
                self.messages.clear()
                note("system message set; conversation forgotten.")
            case "/system":
                note(self._system or "no system message.")
            case "/help":
                note(HELP)
            case _:
                note(f"no command {name}; /help lists them.")
        return True

    def say(self, text: str) -> None:
        """Sends a message and shows the answer; an error leaves the conversation as it was."""
        before = [{"role": "system", "content": self._system}] if self._system else []
        question = {"role": "user", "content": text}
        pace = Pace(time.monotonic)
        try:
            stream = self._connection.ask(
                lambda client: self._answer(client, [*before, *self.messages, question], pace)
            )
        except PagemillError as error:
            self._failed(error)
            return
        if stream.cancelled:
            note("cancelled.")
        if stream.text:
            self.messages += [question, {"role": "assistant", "content": stream.text}]
        if self._stats:
            note(pace.summary(stream))

    async def _answer(self, client: AsyncClient, messages: list[dict[str, str]], pace: Pace) -> AsyncGenerateStream:
        async with client.generate(messages=messages, **self._asked) as stream:
            # Ctrl-C ends the answer; what has come of it belongs to the conversation.
            with contextlib.suppress(asyncio.CancelledError):
                await show_wrapped(stream, pace, as_json=self._as_json)
        return stream

    def _failed(self, error: PagemillError) -> None:
        if self._as_json:
            print_json(as_json(error))
        hints = ["/reset starts over."] if isinstance(error, TooLong) and self.messages else advice(error)
        complain(headline(error), *hints)


def _read_line(interactive: bool) -> str:
    if not interactive:
        line = sys.stdin.readline()
        if not line:
            raise EOFError
        return line
    console = err()
    colour = console.is_terminal and not console.no_color
    # readline must know which characters take no room, or long lines wrap wrongly.
    try:
        return input("\x01\x1b[1;36m\x02> \x01\x1b[0m\x02" if colour else "> ")
    except (EOFError, KeyboardInterrupt):
        console.print()  # What stands at the prompt stays a line of its own.
        raise


def _enable_line_editing() -> None:
    """Loads readline, which gives `input` history and editing."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - loading it is what counts
