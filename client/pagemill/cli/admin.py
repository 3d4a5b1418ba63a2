"""`pagemill cordon`, `uncordon`, `explain`: steering a router."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from pagemill.cli import options as o
from pagemill.cli.calls import call
from pagemill.cli.console import note, out, print_json
from pagemill.cli.inspect import mode_name, standing_name
from pagemill.v1 import admin_pb2

Replica = Annotated[
    str, typer.Argument(help="The replica's name, as `pagemill replicas` shows it.", show_default=False)
]


def cordon(
    replica: Replica,
    reason: Annotated[str, typer.Option("--reason", help="For the log and `pagemill replicas`.")] = "",
    target: o.Target = None,
    json: o.Json = False,
) -> None:
    """Have this router send a replica no further requests."""
    _show(call(target, lambda client: client.cordon(replica, reason=reason)), json)


def uncordon(replica: Replica, target: o.Target = None, json: o.Json = False) -> None:
    """Take a cordon back."""
    _show(call(target, lambda client: client.uncordon(replica)), json)


def explain(
    prompt: Annotated[str, typer.Argument(help="The prompt to explain.", show_default=False)],
    target: o.Target = None,
    chat: o.Chat = False,
    system: o.System = None,
    model: o.Model = None,
    max_tokens: o.MaxTokens = None,
    json: o.Json = False,
) -> None:
    """Say where a request would go and why, and send it nowhere."""
    asked = o.given(model=model, max_tokens=max_tokens)
    if chat or system:
        turns = o.chat_messages(prompt, system)
        found = call(target, lambda client: client.explain(messages=turns, **asked))
    else:
        found = call(target, lambda client: client.explain(prompt, **asked))
    if json:
        print_json(found)
        return
    table = Table("RANK", "REPLICA", "COST", "HIT BLOCKS", "NEED BLOCKS", "FILL", "WHY", box=None, pad_edge=False)
    for candidate in found.candidates:
        table.add_row(
            str(candidate.rank) if candidate.rank >= 0 else "-",
            candidate.replica,
            f"{candidate.cost:.3g}",
            str(candidate.hit_blocks),
            str(candidate.need_blocks),
            f"{candidate.fill:.0%}",
            candidate.reason,
        )
    out().print(table)
    note(
        f"policy {found.policy}, admission {mode_name(found.admission_mode)}, {found.prompt_tokens} prompt tokens, "
        f"{found.expected_output_tokens} output tokens counted on"
    )


def _show(status: admin_pb2.ReplicaStatus, json: bool) -> None:
    if json:
        print_json(status)
    else:
        out().print(f"{status.state.name} is {standing_name(status.standing)}")
