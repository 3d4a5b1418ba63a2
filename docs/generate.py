"""Renders the tables of docs/ that repeat the code; `--check` fails where one is stale instead of writing it.

A page marks a table's place with `<!-- table: NAME -->` and `<!-- end -->`; `doc_tables/` makes them. The links between
pages are checked too.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

from doc_tables import client, commands, kernels, logs, metrics, settings

DOCS = Path(__file__).parent
PLACE = re.compile(r"(<!-- table: (?P<name>[a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
LINK = re.compile(r"\]\((?!https?:)([^)#]+)")

TABLES: dict[str, Callable[[], str]] = {
    "client-methods": client.methods,
    "generate-options": client.generate_options,
    "exceptions": client.exceptions,
    "reasons": client.reason_table,
    "commands": commands.commands,
    "exit-statuses": commands.exit_statuses,
    "connection-limits": settings.connection_limits,
    "request-limits": settings.request_limits,
    "router-settings": settings.router_settings,
    "replica-settings": settings.replica_settings,
    "make-variables": settings.make_variables,
    "router-metrics": metrics.router_metrics,
    "replica-metrics": metrics.replica_metrics,
    "log-fields": logs.log_fields,
    "operators": kernels.operators,
}


def render(page: str) -> str:
    """The page with every table filled in; an unknown name is a KeyError."""
    return PLACE.sub(lambda place: place[1] + TABLES[place["name"]]() + place[3], page)


def unused(pages: list[str]) -> list[str]:
    """Tables that no page shows."""
    shown = {place["name"] for page in pages for place in PLACE.finditer(page)}
    return [f"docs/generate.py: no page shows the table {name}" for name in TABLES if name not in shown]


def broken_links(path: Path, page: str) -> list[str]:
    """Links to files that are not there."""
    return [
        f"{path.name}: there is no {target}" for target in LINK.findall(page) if not (path.parent / target).exists()
    ]


def main(check: bool) -> int:
    """Writes or checks all pages; 1 where a page is stale or says what is not so."""
    paths = sorted(DOCS.glob("*.md"))
    problems = unused([path.read_text() for path in paths])
    for path in (*paths, DOCS.parent / "README.md", DOCS.parent / "CONTRIBUTING.md"):
        problems += broken_links(path, path.read_text())
    problems += filter(None, [client.check_async_client()])
    for path in paths:
        page = path.read_text()
        rendered = render(page)
        if rendered == page:
            continue
        if check:
            problems.append(f"docs/{path.name}: stale; run `make docs`")
        else:
            path.write_text(rendered)
            sys.stderr.write(f"docs/{path.name}: written\n")
    sys.stderr.writelines(f"{problem}\n" for problem in problems)
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main("--check" in sys.argv[1:]))
