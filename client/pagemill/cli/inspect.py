"""`pagemill tokenize`, `models`, `replicas`: looking into a service."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from pagemill.cli import options as o
from pagemill.cli.calls import call
from pagemill.cli.console import note, out, print_json, visible
from pagemill.v1 import admin_pb2, model_pb2

_COLOURS = ("cyan", "yellow", "green", "magenta")


def tokenize(
    text: Annotated[str, typer.Argument(help="The text; - reads it from stdin.", show_default=False)],
    target: o.Target = None,
    chat: o.Chat = False,
    system: o.System = None,
    model: o.Model = None,
    add_special_tokens: o.AddSpecial = None,
    count: Annotated[bool, typer.Option("--count", help="Print only how many.")] = False,
    json: o.Json = False,
) -> None:
    """Show the tokens of a text, as a request would have them."""
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
    else:
        console = out()
        if console.is_terminal:
            pieces = [
                f"[black on {_COLOURS[i % len(_COLOURS)]}]{escape(visible(piece).replace(chr(10), '⏎'))}[/]"
                for i, piece in enumerate(found.pieces)
            ]
            console.print("".join(pieces), soft_wrap=True)
        console.print(" ".join(map(str, found.token_ids)), soft_wrap=True)
        note(f"{len(found.token_ids)} tokens of {found.model}")


def models(target: o.Target = None, json: o.Json = False) -> None:
    """List the models that ready replicas serve."""
    found = call(target, lambda client: client.models())
    if json:
        for model in found:
            print_json(model)
        return
    if not found:
        note("no ready replica serves a model; `pagemill replicas` shows why.")
        return
    table = Table("NAME", "ALIASES", "FAMILY", "CONTEXT", "DTYPE", "CHAT", "REPLICAS", box=None, pad_edge=False)
    for model in found:
        table.add_row(*_model_row(model))
    out().print(table)


def replicas(target: o.Target = None, json: o.Json = False) -> None:
    """List the replicas that the router knows, with how full they are."""
    found = call(target, lambda client: client.replicas())
    if json:
        for replica in found.replicas:
            print_json(replica)
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("NAME", "STANDING", "ADDRESS", "MODEL", "KV USED", "COMMIT", "RUN", "WAIT", "TOK/S"):
        table.add_column(heading, no_wrap=heading in ("NAME", "ADDRESS", "KV USED"))
    for replica in found.replicas:
        table.add_row(*_replica_row(replica))
    out().print(table)
    note(
        f"router {found.router} (pid {found.router_pid}), policy {found.policy}, "
        f"admission {mode_name(found.admission_mode)}, {found.queued} queued"
    )


def standing_name(standing: admin_pb2.ReplicaStanding.ValueType) -> str:
    """A standing as people read it."""
    return admin_pb2.ReplicaStanding.Name(standing).removeprefix("REPLICA_STANDING_").lower().replace("_", " ")


def mode_name(mode: admin_pb2.AdmissionMode.ValueType) -> str:
    """An admission mode as people read it."""
    return admin_pb2.AdmissionMode.Name(mode).removeprefix("ADMISSION_MODE_").lower()


def _model_row(model: model_pb2.Model) -> tuple[str, ...]:
    return (
        model.name,
        ", ".join(model.aliases) or "-",
        model.family,
        str(model.max_context_tokens),
        model.dtype,
        "yes" if model.has_chat_template else "no",
        str(model.ready_replicas),
    )


def _replica_row(replica: admin_pb2.ReplicaStatus) -> tuple[str, ...]:
    state = replica.state
    standing = standing_name(replica.standing)
    capacity = state.capacity_blocks
    return (
        state.name or "?",
        replica.reason if standing in replica.reason else f"{standing}: {replica.reason}".removesuffix(": "),
        replica.address,
        state.model.name or "?",
        f"{state.used_blocks}/{capacity}",
        f"{state.committed_blocks / capacity:.0%}" if capacity else "-",
        str(state.running),
        str(state.waiting),
        f"{state.tokens_per_second:.1f}",
    )
