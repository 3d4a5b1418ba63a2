"""`pagemill router` and `pagemill replica`: become one process of a tier, which is what pods run."""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Any

import typer

from pagemill.cli.console import complain
from pagemill.cli.failures import ExitCode
from pagemill.local.install import install_advice

PASS_THROUGH: dict[str, Any] = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "allow_interspersed_args": False,
    "help_option_names": [],
}
"""All arguments go to the tier, --help included."""

_NEEDED = {"router": ("redis", "tokenizers", "pydantic_settings"), "replica": ("redis", "torch", "numba", "zmq")}


def router(context: typer.Context) -> None:
    """Run one router. All arguments are the router's own; see `pagemill router --help`."""
    _become("router", context.args)


def replica(context: typer.Context) -> None:
    """Run one replica. All arguments are the replica's own; see `pagemill replica --help`."""
    _become("replica", context.args)


def _become(tier: str, arguments: list[str]) -> None:
    missing = [name for name in _NEEDED[tier] if importlib.util.find_spec(name) is None]
    if missing:
        complain(f"a {tier} needs {', '.join(missing)}", install_advice(tier))
        raise typer.Exit(ExitCode.START)
    os.execv(sys.executable, [sys.executable, "-m", f"pagemill_{tier}", *arguments])
