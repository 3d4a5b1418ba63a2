"""`pagemill tokenize`, `detokenize`: from text to tokens and back."""

from __future__ import annotations

import json as encoding
import sys
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.markup import escape

from pagemill.cli import options as o
from pagemill.cli.calls import call
from pagemill.cli.console import counted, note, out, print_json, visible, write_text
from pagemill.v1 import generation_pb2

_COLOURS = ("cyan", "yellow", "green", "magenta")


def tokenize(
    text: Annotated[str, typer.Argument(help="The text; - reads it from stdin.", show_default=False)],
    target: o.Target = None,
    chat: o.Chat = False,
    system: o.SystemOfChat = None,
    model: o.Model = None,
    add_special_tokens: o.AddSpecial = None,
    count: Annotated[bool, typer.Option("--count", help="Print only how many.")] = False,
    pieces: Annotated[
        bool, typer.Option("--pieces", help="A line for each token: its id, its text in quotes.")
    ] = False,
    json: o.ProtoJson = False,
) -> None:
    """Show the tokens of a text, as a request would have them.

    Prints the ids; a terminal shows the text cut into its pieces, too.
    """
    content = sys.stdin.read() if text == "-" else text
    if chat or system:
        turns = o.chat_messages(content, system)
        found = call(target, lambda client: client.tokenize(messages=turns, model=model))
    else:
        found = call(
            target, lambda client: client.tokenize(content, model=model, add_special_tokens=add_special_tokens)
        )
    if json:
        print_json(found)
    elif count:
        typer.echo(len(found.token_ids))
    elif pieces:
        for token_id, piece in zip(found.token_ids, found.pieces, strict=True):
            typer.echo(f"{token_id}\t{encoding.dumps(piece, ensure_ascii=False)}")
    else:
        _show(found)


def detokenize(
    ids: Annotated[list[str], typer.Argument(help="Token ids; - reads them from stdin.", show_default=False)],
    target: o.Target = None,
    model: o.Model = None,
    skip_special_tokens: o.SkipSpecial = None,
    json: o.Json = False,
) -> None:
    """Show the text of token ids, such as `tokenize` prints them."""
    wanted = _numbers([sys.stdin.read()] if ids == ["-"] else ids)
    text = call(target, lambda client: client.detokenize(wanted, model=model, skip_special_tokens=skip_special_tokens))
    if json:
        print_json({"text": text})
    else:
        write_text(text if text.endswith("\n") else text + "\n")


def _numbers(parts: Sequence[str]) -> list[int]:
    try:
        return [int(word) for part in parts for word in part.replace(",", " ").split()]
    except ValueError:
        raise ValueError("token ids are whole numbers with spaces or commas between them") from None


def _show(found: generation_pb2.TokenizeResponse) -> None:
    console = out()
    if console.is_terminal and found.pieces:
        pieces = [
            f"[black on {_COLOURS[i % len(_COLOURS)]}]{escape(visible(piece).replace(chr(10), '⏎'))}[/]"
            for i, piece in enumerate(found.pieces)
        ]
        console.print("".join(pieces), soft_wrap=True)
    if found.token_ids:
        console.print(" ".join(map(str, found.token_ids)), soft_wrap=True)
    note(f"{counted(len(found.token_ids), 'token')} of {found.model}")
