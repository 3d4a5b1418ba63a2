"""Renders the tables of docs/ that repeat the code; `--check` fails where one is stale instead of writing it.

A page marks a table's place with `<!-- table: NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from pagemill_common.settings import Settings
from pagemill_replica.settings import ReplicaSettings
from pagemill_router.settings import RouterSettings

DOCS = Path(__file__).parent
PLACE = re.compile(r"(<!-- table: (?P<name>[a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def settings_rows(settings: type[Settings]) -> str:
    """One row for each setting of a tier."""
    rows = [
        (f"`{flag}`", f"`{variable}`", default, text) for flag, variable, default, text in settings.settings_table()
    ]
    return markdown(("flag", "variable", "default", "what it does"), rows)


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


TABLES: dict[str, Callable[[], str]] = {
    "router-settings": lambda: settings_rows(RouterSettings),
    "replica-settings": lambda: settings_rows(ReplicaSettings),
}


def render(page: str) -> str:
    """The page with every table filled in; an unknown name is a KeyError."""
    return PLACE.sub(lambda place: place[1] + TABLES[place["name"]]() + place[3], page)


def main(check: bool) -> int:
    """Writes or checks all pages; 1 where a page is stale."""
    stale = [path for path in sorted(DOCS.glob("*.md")) if render(path.read_text()) != path.read_text()]
    for path in stale:
        if not check:
            path.write_text(render(path.read_text()))
        sys.stderr.write(f"docs/{path.name}: {'stale; run `make docs`' if check else 'written'}\n")
    return 1 if stale and check else 0


if __name__ == "__main__":
    raise SystemExit(main("--check" in sys.argv[1:]))
