"""`pagemill models`, `replicas`: looking into a service."""

from __future__ import annotations

from collections.abc import Iterable

from rich.table import Table

from pagemill.cli import options as o
from pagemill.cli.calls import call
from pagemill.cli.console import note, out, print_json, reasons_below
from pagemill.unanswered import cause
from pagemill.v1 import admin_pb2, model_pb2

_NUMBERS = ("KV", "COMMIT", "RUN", "WAIT", "TOK/S")


def models(target: o.Target = None, json: o.ProtoJson = False) -> None:
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


def replicas(target: o.Router = None, json: o.ProtoJson = False) -> None:
    """List the replicas that the router knows, with how full they are.

    KV is the share of the KV cache in use, COMMIT what its requests may come to need.

    With --json, a line for each replica and then one for the router, which has `router` in it.
    """
    found = call(target, lambda client: client.replicas())
    if json:
        for replica in found.replicas:
            print_json(replica)
        print_json(_router_line(found))
        return
    if found.replicas:
        _show(found.replicas)
    else:
        note("the router knows no replica.")
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


def _show(replicas: Iterable[admin_pb2.ReplicaStatus]) -> None:
    replicas = list(replicas)
    served = {replica.state.model.name for replica in replicas} - {""}
    table = Table(box=None, pad_edge=False)
    for heading in ("NAME", "STANDING", "ADDRESS", *_NUMBERS):
        table.add_column(heading, no_wrap=True, justify="right" if heading in _NUMBERS else "left")
    if len(served) > 1:
        table.add_column("MODEL")
    for replica in replicas:
        row = _replica_row(replica)
        table.add_row(*row, *([replica.state.model.name or "?"] if len(served) > 1 else []))
    out().print(table)
    reasons_below((replica.state.name or replica.address, _reason(replica)) for replica in replicas)
    if len(served) == 1:
        note(f"model {served.pop()}")


def _router_line(found: admin_pb2.ListReplicasResponse) -> dict[str, object]:
    return {
        "router": found.router,
        "router_pid": found.router_pid,
        "policy": found.policy,
        "admission_mode": admin_pb2.AdmissionMode.Name(found.admission_mode),
        "queued": found.queued,
    }


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
    return (
        state.name or "?",
        standing_name(replica.standing),
        replica.address,
        _share(state.used_blocks, state.capacity_blocks),
        _share(state.committed_blocks, state.capacity_blocks),
        str(state.running),
        str(state.waiting),
        f"{state.tokens_per_second:.1f}",
    )


def _share(blocks: int, capacity: int) -> str:
    return f"{blocks / capacity:.0%}" if capacity else "-"


def _reason(replica: admin_pb2.ReplicaStatus) -> str:
    """Why the replica stands as it does; empty where its standing says it all."""
    reason = cause(replica.reason).removeprefix(standing_name(replica.standing)).removeprefix(": ")
    return "" if reason == f"says it is {standing_name(replica.standing)}" else reason
