"""`pagemill doctor`: what is wrong on this machine, and what to do."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.markup import escape

from pagemill.cli import options as o
from pagemill.cli import stack as s
from pagemill.cli.console import out, print_json
from pagemill.cli.failures import ExitCode
from pagemill.local.checks import Check, Verdict, all_checks

_MARKS = {Verdict.OK: "[green]ok  [/green]", Verdict.WARN: "[yellow]warn[/yellow]", Verdict.FAIL: "[red]FAIL[/red]"}


def doctor(
    model: s.ModelPath = s.DEFAULT,
    redis_url: Annotated[
        str | None,
        typer.Option(
            "--redis-url",
            envvar="PAGEMILL_ROUTER_REDIS_URL",
            help="A Redis to look at.",
            show_default="the embedded one",
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option("--target", "-t", envvar="PAGEMILL_TARGET", help="A server to look at.", show_default="none"),
    ] = None,
    json: o.Json = False,
) -> None:
    """Check Python, packages, torch, GPU, memory, Redis, ports and model. Exit status 1 where something is wrong.

    With --json, one line for each check: name, verdict (ok, warn, fail), found, advice.
    """
    worst = Verdict.OK
    for check in all_checks(model=model, redis_url=redis_url, target=target):
        worst = max(worst, check.verdict, key=list(Verdict).index)
        if json:
            print_json(asdict(check))
        else:
            _show(check)
    if worst is Verdict.FAIL:
        raise typer.Exit(ExitCode.FAILED)


def _show(check: Check) -> None:
    console = out()
    console.print(f"{_MARKS[check.verdict]}  {check.name:<10} {escape(check.found)}", soft_wrap=True)
    if check.advice:
        console.print(f"                 → {escape(check.advice)}", soft_wrap=True)
