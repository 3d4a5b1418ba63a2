"""Every help screen, on a terminal of 80 columns."""

from __future__ import annotations

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from pagemill.cli.app import app
from pagemill.cli.options import flag_of
from pagemill.options import GenerateOptions

COMMANDS = get_command(app).commands  # type: ignore[attr-defined]
OWN_HELP = ("router", "replica")
"""Their processes write their own."""


@pytest.mark.parametrize("command", ["", *(name for name in sorted(COMMANDS) if name not in OWN_HELP)])
def test_help_is_readable_at_80_columns(command: str) -> None:
    result = CliRunner().invoke(
        app, [*command.split(), "--help"], env={"COLUMNS": "80", "TERM": "dumb", "_TYPER_FORCE_DISABLE_TERMINAL": "1"}
    )
    assert result.exit_code == 0
    assert "…" not in result.stdout, "no name is cut"
    assert "<bool>" not in result.stdout
    assert all(len(line) <= 80 for line in result.stdout.splitlines())
    if command:
        named = [flag for param in COMMANDS[command].params for flag in (*param.opts, *param.secondary_opts)]
        assert all(flag in result.stdout for flag in named if flag.startswith("--"))
    if "--system" in result.stdout:
        assert ("implies --chat" in " ".join(result.stdout.replace("│", "").split())) == (" --chat " in result.stdout)


def test_the_flags_in_messages_are_those_of_generate() -> None:
    flags = {flag for param in COMMANDS["generate"].params for flag in param.opts}
    told = {option: flag_of(option) for option in GenerateOptions.__annotations__}
    assert {flag for flag in told.values() if flag} <= flags
    named_like_options = {option for option in told if "--" + option.replace("_", "-") in flags}
    assert {option for option, flag in told.items() if flag} == named_like_options | {"stop_token_ids"}
