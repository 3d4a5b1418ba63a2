"""`pagemill serve`: a whole service on this machine, until Ctrl-C."""

from __future__ import annotations

import socket
import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from pagemill.channel import DEFAULT_TARGET
from pagemill.cli import options as o
from pagemill.cli import stack as s
from pagemill.cli.console import note, out, print_json
from pagemill.cli.failures import ExitCode
from pagemill.cli.invoked import own_command
from pagemill.local.stack import LocalStack

WATCH_SECONDS = 0.25


def serve(
    replicas: Annotated[int, typer.Option("--replicas", min=1, max=64, help="How many replicas.")] = 1,
    routers: Annotated[int, typer.Option("--routers", min=1, max=16, help="How many routers.")] = 1,
    model: s.ModelPath = s.DEFAULT,
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            min=0,
            max=65535,
            help="Of the first router; 0 takes a free one.",
            show_default="8450, or a free one where it is taken",
        ),
    ] = None,
    redis_url: s.RedisUrl = None,
    policy: o.Policy = None,
    dtype: s.Dtype = "auto",
    device: s.Device = "cpu",
    deterministic: s.Deterministic = False,
    kv_memory: s.KvMemory = None,
    max_context: s.MaxContext = None,
    threads: s.Threads = None,
    otlp_endpoint: Annotated[
        str | None, typer.Option("--otlp-endpoint", help="Where the tiers send their spans, such as http://host:4317.")
    ] = None,
    json: o.Json = False,
) -> None:
    """Run routers, replicas and a Redis on this machine until Ctrl-C.

    --json writes one line with the addresses and process ids once everything is ready.
    """
    spec = s.make_spec(
        model,
        redis_url=redis_url,
        replicas=replicas,
        routers=routers,
        port=default_port() if port is None else port,
        policy=policy,
        dtype=dtype,
        device=device,
        deterministic=deterministic,
        kv_memory=kv_memory,
        max_context=max_context,
        threads=threads,
        otlp_endpoint=otlp_endpoint,
    )
    try:
        with s.running(spec) as stack:
            _announce(stack, spec.model_name, as_json=json)
            while True:
                time.sleep(WATCH_SECONDS)
                stack.check()
    except KeyboardInterrupt:
        note("stopped.")
        raise typer.Exit(ExitCode.OK) from None


def default_port() -> int:
    """The port that clients try by themselves, or 0 where something else has it."""
    wanted = int(DEFAULT_TARGET.rpartition(":")[2])
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", wanted))
        except OSError:
            return 0
    return wanted


def _announce(stack: LocalStack, model: str, *, as_json: bool) -> None:
    routers = stack.router_addresses
    if as_json:
        print_json(
            {
                "model": model,
                "routers": routers,
                "replicas": stack.replica_addresses,
                "redis": stack.redis_url,
                "pids": stack.pids,
                "logs": str(stack.folder),
            }
        )
        return
    console = out()
    target = ",".join(routers)
    console.print(f"[bold green]ready[/bold green]  {model} at [bold]{target}[/bold]", soft_wrap=True)
    for name, address in zip(
        (f"replica-{i}" for i in range(len(stack.replica_addresses))), stack.replica_addresses, strict=True
    ):
        console.print(f"       {name} at {address}", soft_wrap=True)
    console.print(f"       redis at {stack.redis_url}, logs in {stack.folder}", soft_wrap=True)
    if DEFAULT_TARGET in routers:
        console.print(f"try    {escape(own_command(sys.argv[0], Path.cwd()))} chat", soft_wrap=True)
    if routers != [DEFAULT_TARGET]:
        console.print(f"       export PAGEMILL_TARGET={target}", soft_wrap=True)
    note("Ctrl-C stops everything.")
