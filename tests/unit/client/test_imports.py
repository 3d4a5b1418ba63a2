"""What the client loads, seen from a fresh interpreter."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = ("typer", "rich", "torch", "numba", "transformers", "redis", "opentelemetry", "pagemill_common")


def loaded(statement: str) -> set[str]:
    code = f"{statement}\nimport sys, json\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("statement", ["import pagemill", "import pagemill.v1", "import pagemill.reasons"])
def test_the_library_loads_nothing_heavy(statement: str) -> None:
    assert not loaded(statement) & set(HEAVY)


def test_the_command_loads_no_tier() -> None:
    names = loaded("import pagemill.cli")
    assert "typer" in names
    assert not {n.partition(".")[0] for n in names} & {
        "torch",
        "numba",
        "transformers",
        "pagemill_common",
        "pagemill_router",
        "pagemill_replica",
        "pagemill_kernels",
        "opentelemetry",
    }
