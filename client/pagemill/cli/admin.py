"""`pagemill cordon`, `uncordon`, `explain`: steering a router."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from pagemill.cli import options as o
from pagemill.cli.calls import call
from pagemill.cli.console import counted, note, out, print_json, reasons_below
from pagemill.cli.inspect import mode_name, standing_name
from pagemill.unanswered import cause
from pagemill.v1 import admin_pb2

_WIDEST_REASON = 36
"""Characters that 80 columns leave beside ordinary names."""

Replica = Annotated[
    str, typer.Argument(help="The replica's name, as `pagemill replicas` shows it.", show_default=False)
]


def cordon(
    replica: Replica,
    reason: Annotated[str, typer.Option("--reason", help="For the log and `pagemill replicas`.")] = "",
    target: o.Router = None,
    json: o.ProtoJson = False,
) -> None:
    """Have one router send a replica no further requests, until `uncordon`.

    Other routers are not told.
    """
    status = call(target, lambda client: client.cordon(replica, reason=reason))
    if json:
        print_json(status)
        return
    cordoned = status.standing == admin_pb2.REPLICA_STANDING_CORDONED
    standing = "cordoned" if cordoned else f"cordoned, and {standing_name(status.standing)},"
    typer.echo(f"{status.state.name} is {standing} on this router only")
    typer.echo(f"undo it with: pagemill uncordon {replica}{f' -t {target}' if target else ''}")


def uncordon(replica: Replica, target: o.Router = None, json: o.ProtoJson = False) -> None:
    """Take a cordon back."""
    status = call(target, lambda client: client.uncordon(replica))
    if json:
        print_json(status)
    else:
        typer.echo(f"{status.state.name} is {standing_name(status.standing)}")


def explain(
    prompt: Annotated[str, typer.Argument(help="The prompt to explain.", show_default=False)],
    target: o.Router = None,
    chat: o.Chat = False,
    system: o.SystemOfChat = None,
    model: o.Model = None,
    max_tokens: o.MaxTokens = None,
    json: o.ProtoJson = False,
) -> None:
    """Say where a request would go and why, and send it nowhere.

    HIT is how many blocks of the prompt the replica has cached, NEED how many it would take, FILL how full it would
    be then.
    """
    asked = o.given(model=model, max_tokens=max_tokens)
    if chat or system:
        turns = o.chat_messages(prompt, system)
        found = call(target, lambda client: client.explain(messages=turns, **asked))
    else:
        found = call(target, lambda client: client.explain(prompt, **asked))
    if json:
        print_json(found)
        return
    table = Table("RANK", "REPLICA", "COST", "HIT", "NEED", "FILL", "WHY", box=None, pad_edge=False)
    for candidate in found.candidates:
        table.add_row(
            str(candidate.rank) if candidate.rank >= 0 else "-",
            candidate.replica,
            f"{candidate.cost:.3g}",
            str(candidate.hit_blocks),
            str(candidate.need_blocks),
            f"{candidate.fill:.0%}",
            _short(candidate),
        )
    out().print(table)
    reasons_below((one.replica, cause(one.reason)) for one in found.candidates if _short(one) != one.reason)
    note(
        f"policy {found.policy}, admission {mode_name(found.admission_mode)}, "
        f"{counted(found.prompt_tokens, 'prompt token')}, "
        f"{counted(found.expected_output_tokens, 'output token')} counted on"
    )


def _short(candidate: admin_pb2.RouteCandidate) -> str:
    """The reason where it fits beside the figures, else where to look for it."""
    return candidate.reason if len(candidate.reason) <= _WIDEST_REASON else "see below"
