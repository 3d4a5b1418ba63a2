"""Puts the commands together and turns whatever goes wrong into a line and an exit status."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Any

import typer
from typer.core import TyperGroup

from pagemill.cli import admin, ask, chat, doctor, inspect, run, serve, tiers
from pagemill.cli.console import complain, print_json
from pagemill.cli.failures import EXIT_CODES_HELP, ExitCode, advice, as_json, exit_code, headline
from pagemill.cli.options import JSON_KEY
from pagemill.errors import PagemillError
from pagemill.local.models import ModelMissing
from pagemill.local.stack import StackError


class _Group(TyperGroup):
    """Handles errors in one place, for the real command and for tests alike."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
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


app = typer.Typer(
    name="pagemill",
    cls=_Group,
    help="LLM inference over gRPC: ask a service, look into it, or run one on this machine.",
    epilog=EXIT_CODES_HELP,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)

_ASK = "Ask"
_LOOK = "Look and steer"
_RUN = "Run"

app.command("generate", rich_help_panel=_ASK)(ask.generate)
app.command("chat", rich_help_panel=_ASK)(chat.chat)
app.command("tokenize", rich_help_panel=_ASK)(inspect.tokenize)
app.command("models", rich_help_panel=_LOOK)(inspect.models)
app.command("replicas", rich_help_panel=_LOOK)(inspect.replicas)
app.command("explain", rich_help_panel=_LOOK)(admin.explain)
app.command("cordon", rich_help_panel=_LOOK)(admin.cordon)
app.command("uncordon", rich_help_panel=_LOOK)(admin.uncordon)
app.command("run", rich_help_panel=_RUN)(run.run)
app.command("serve", rich_help_panel=_RUN)(serve.serve)
app.command("router", rich_help_panel=_RUN, context_settings=tiers.PASS_THROUGH)(tiers.router)
app.command("replica", rich_help_panel=_RUN, context_settings=tiers.PASS_THROUGH)(tiers.replica)
app.command("doctor", rich_help_panel=_RUN)(doctor.doctor)


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
