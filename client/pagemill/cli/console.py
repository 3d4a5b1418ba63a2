"""Where the command line writes: answers and data to stdout, everything else to stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from google.protobuf.message import Message
from rich.console import Console
from rich.markup import escape

from pagemill.cli.plain import plain


def out() -> Console:
    """Standard output, with colour only on a terminal; elsewhere lines are as long as they need."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 1000
    return console


def err() -> Console:
    """Standard error, with colour only on a terminal."""
    return Console(stderr=True, highlight=False)


def print_json(value: Mapping[str, Any] | Message) -> None:
    """One line of JSON on stdout, at once."""
    if isinstance(value, Message):
        value = plain(value)
    sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def write_text(text: str) -> None:
    """A piece of an answer, at once and as it is; on a terminal without what could drive the terminal."""
    sys.stdout.write(visible(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def visible(text: str) -> str:
    """The text with control characters other than newline and tab made visible."""
    return "".join(c if c in "\n\t" or c.isprintable() or not _is_control(c) else f"\\x{ord(c):02x}" for c in text)


def counted(count: int, thing: str) -> str:
    """How many of a thing: 1 token, 2 tokens."""
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def reasons_below(reasons: Iterable[tuple[str, str]]) -> None:
    """Lines on stdout, for what is too long for the table above: (name, reason), where there is a reason."""
    for name, reason in reasons:
        if reason:
            out().print(escape(visible(f"{name}: {reason}")))


def note(text: str) -> None:
    """A remark on stderr, dim on a terminal."""
    err().print(f"[dim]{escape(text)}[/dim]", soft_wrap=True)


def complain(text: str, *advice: str) -> None:
    """One clear line about what is wrong, and lines about what to do."""
    console = err()
    console.print(f"[bold red]error:[/bold red] {escape(text)}", soft_wrap=True)
    for line in advice:
        console.print(f"  {escape(line)}", soft_wrap=True)


def _is_control(character: str) -> bool:
    code = ord(character)
    return code < 32 or 127 <= code < 160
