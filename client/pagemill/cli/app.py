"""Puts the commands together and turns whatever goes wrong into a line and an exit status."""

from __future__ import annotations

import os
import re
import sys
from contextlib import suppress
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from pagemill.cli import admin, ask, chat, doctor, inspect, run, serve, tiers, tokens
from pagemill.cli.console import complain, print_json
from pagemill.cli.failures import EXIT_CODES_HELP, ExitCode, advice, as_json, exit_code, headline
from pagemill.cli.options import JSON_KEY
from pagemill.errors import PagemillError
from pagemill.local.models import ModelMissing
from pagemill.local.stack import StackError

_LONG_TYPE = re.compile(r"list\[(.*)\]| range")


def _readable(params: list[Any], ctx: Any) -> list[Any]:
    """Has help leave more room for what options mean: no type for flags, a short one for lists and ranges."""
    for param in params:
        if param.metavar is None and param.param_type_name == "option":
            kind = "" if param.is_flag else param.display_type(ctx) or ""
            param.metavar = _LONG_TYPE.sub(r"\1", kind)
    return params


class _Command(TyperCommand):
    def get_params(self, ctx: Any) -> Any:
        return _readable(super().get_params(ctx), ctx)


class _Group(TyperGroup):
    """Handles errors in one place, for the real command and for tests alike."""

    def get_params(self, ctx: Any) -> Any:
        return _readable(super().get_params(ctx), ctx)

    def invoke(self, ctx: Any) -> Any:
        try:
            found = super().invoke(ctx)
            sys.stdout.flush()
            return found
        except BrokenPipeError:
            _drop_output()
            raise typer.Exit(ExitCode.PIPE_CLOSED) from None
        except PagemillError as error:
            if ctx.meta.get(JSON_KEY):
                print_json(as_json(error))
            complain(headline(error), *advice(error))
            raise typer.Exit(exit_code(error)) from None
        except StackError as error:
            complain(error.message, *error.tail, f"logs are kept in {error.folder}; `pagemill doctor` may know more.")
            raise typer.Exit(ExitCode.START) from None
        except ModelMissing as error:
            complain(str(error))
            raise typer.Exit(ExitCode.START) from None
        except ValueError as error:
            complain(str(error))
            raise typer.Exit(ExitCode.USAGE) from None
        except (KeyboardInterrupt, typer.Abort):
            raise typer.Exit(ExitCode.INTERRUPTED) from None


def _drop_output() -> None:
    """What is still buffered has no reader; the interpreter would fail on it at its end."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


app = typer.Typer(
    name="pagemill",
    cls=_Group,
    help="LLM inference over gRPC: ask a service, look into it, or run one on this machine.",
    epilog=EXIT_CODES_HELP,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)

_command = partial(app.command, cls=_Command)

_ASK = "Ask"
_LOOK = "Look and steer"
_RUN = "Run"

_command("generate", rich_help_panel=_ASK)(ask.generate)
_command("chat", rich_help_panel=_ASK)(chat.chat)
_command("tokenize", rich_help_panel=_ASK)(tokens.tokenize)
_command("detokenize", rich_help_panel=_ASK)(tokens.detokenize)
_command("models", rich_help_panel=_LOOK)(inspect.models)
_command("replicas", rich_help_panel=_LOOK)(inspect.replicas)
_command("explain", rich_help_panel=_LOOK)(admin.explain)
_command("cordon", rich_help_panel=_LOOK)(admin.cordon)
_command("uncordon", rich_help_panel=_LOOK)(admin.uncordon)
_command("run", rich_help_panel=_RUN)(run.run)
_command("serve", rich_help_panel=_RUN)(serve.serve)
_command("router", rich_help_panel=_RUN, context_settings=tiers.PASS_THROUGH)(tiers.router)
_command("replica", rich_help_panel=_RUN, context_settings=tiers.PASS_THROUGH)(tiers.replica)
_command("doctor", rich_help_panel=_RUN)(doctor.doctor)


def _show_version(value: bool) -> None:
    if value:
        try:
            typer.echo(f"pagemill {version('pagemill')}")
        except PackageNotFoundError:
            typer.echo("pagemill, not installed")
        raise typer.Exit


@app.callback()
def _root(
    show_version: bool = typer.Option(
        False, "--version", help="Show the version.", callback=_show_version, is_eager=True
    ),
) -> None:
    pass


def main() -> None:
    """The entry point."""
    app()
