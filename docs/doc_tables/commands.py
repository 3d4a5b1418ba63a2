"""Tables of the command line: commands, exit statuses."""

from __future__ import annotations

import re

from doc_tables.markdown import first_line, table
from pagemill.cli.app import app
from pagemill.cli.failures import EXIT_CODES_HELP, ExitCode

_MEANING = re.compile(r"(\d+) (.+?)(?=, \d+ |\.$)")


def commands() -> str:
    """One row for each command."""
    rows = [
        (f"`pagemill {info.name}`", first_line(info.help or (info.callback.__doc__ if info.callback else "")))
        for info in app.registered_commands
    ]
    return table(("command", "what it does"), rows)


def exit_statuses() -> str:
    """One row for each exit status; ValueError where help and code differ."""
    told = {int(number): text for number, text in _MEANING.findall(EXIT_CODES_HELP.partition(":")[2])}
    if told.keys() != {int(code) for code in ExitCode}:
        raise ValueError(f"EXIT_CODES_HELP tells of {sorted(told)}, ExitCode has {sorted(map(int, ExitCode))}")
    return table(("status", "meaning"), [(str(int(code)), told[code]) for code in ExitCode])
