"""`pagemill doctor`: what is wrong on this machine, and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated

import typer
from rich.markup import escape

from pagemill.channel import DEFAULT_TARGET
from pagemill.cli import options as o
from pagemill.cli.console import err, out, print_json
from pagemill.cli.failures import ExitCode
from pagemill.local.checks import all_checks
from pagemill.local.models import DEFAULT_MODEL
from pagemill.local.verdicts import Check, Verdict

_MARKS = {Verdict.OK: "[green]ok  [/green]", Verdict.WARN: "[yellow]warn[/yellow]", Verdict.FAIL: "[red]FAIL[/red]"}


def doctor(
    model: Annotated[
        str | None,
        typer.Option(
            "--model", "-m", help="A GGUF file, a Hugging Face folder, or smollm2.", show_default=DEFAULT_MODEL
        ),
    ] = None,
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
        typer.Option(
            "--target",
            "-t",
            envvar="PAGEMILL_TARGET",
            help="A server to look at.",
            show_default=f"{DEFAULT_TARGET}, where one runs",
        ),
    ] = None,
    json: o.Json = False,
) -> None:
    """Check Python, packages, torch, GPU, memory, Redis, ports and model. Exit status 1 where something is wrong.

    With --json, one line for each check: name, verdict (ok, warn, fail), found, advice.
    """
    worst = Verdict.OK
    checks = all_checks(model=model, redis_url=redis_url, target=target)
    while (check := _next(checks)) is not None:
        worst = max(worst, check.verdict, key=list(Verdict).index)
        if json:
            print_json(asdict(check))
        else:
            _show(check)
    if worst is Verdict.FAIL:
        raise typer.Exit(ExitCode.FAILED)


def _next(checks: Iterator[Check]) -> Check | None:
    # While a status line moves, rich sends what is printed the line's way; answers belong on stdout.
    with err().status("looking"):
        return next(checks, None)


def _show(check: Check) -> None:
    console = out()
    console.print(f"{_MARKS[check.verdict]}  {check.name:<10} {escape(check.found)}", soft_wrap=True)
    if check.advice:
        console.print(f"                 → {escape(check.advice)}", soft_wrap=True)
