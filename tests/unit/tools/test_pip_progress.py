"""The line of progress that `make` shows while pip works."""

from __future__ import annotations

import importlib.util
import io
import sys
from pathlib import Path
from types import ModuleType

import pytest

PATH = Path(__file__).parents[3] / "tools" / "pip_progress.py"


@pytest.fixture
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pip_progress", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PIP = (
    "Collecting numpy>=2\n",
    "  Downloading numpy-2.4.0-cp311-manylinux_2_27_x86_64.whl (16.6 MB)\n",
    "Progress 5 of 10\n",
    "Installing collected packages: numpy, torch, and, many, more\n",
)


def shown(tool: ModuleType, *, terminal: bool, seconds: float = 3.0) -> str:
    out = io.StringIO()
    times = iter([0.0] * 2 + [seconds] * 20)
    line = tool.Line(out, terminal, lambda: next(times), lambda: 40)
    for text in PIP:
        line.saw(text)
    line.clear()
    return out.getvalue()


def test_a_terminal_sees_one_line_that_fits_and_says_how_far_and_how_long(tool: ModuleType) -> None:
    text = shown(tool, terminal=True)
    assert "\n" not in text
    drawn = text.split("\r\033[K")
    assert max(len(part) for part in drawn) < 40, "a line as wide as the terminal would wrap"
    assert any(part.startswith("  Downloading numpy") and part.endswith(" 50 % (0 s)") for part in drawn)
    assert drawn[-1] == "", "the line goes away"


def test_the_line_moves_while_pip_says_nothing(tool: ModuleType) -> None:
    out = io.StringIO()
    now = [0.0]
    line = tool.Line(out, True, lambda: now[0], lambda: 80)
    line.saw("Installing collected packages: a\n")
    now[0] = 7.2
    line.draw()
    assert out.getvalue().endswith("  Unpacking what was downloaded (7 s)")


def test_a_pipe_gets_a_line_for_each_long_step_and_nothing_else(tool: ModuleType) -> None:
    assert shown(tool, terminal=False).splitlines() == [
        "  Downloading numpy-2.4.0-cp311-manylinux_2_27_x86_64.whl (16.6 MB)",
        "  Unpacking what was downloaded",
    ]


def test_a_pip_that_fails_leaves_its_whole_log_and_its_status(tool: ModuleType, tmp_path: Path) -> None:
    out = io.StringIO()
    line = tool.Line(out, False, lambda: 0.0, lambda: 80)
    said = "print('Downloading a'); print('Progress 1 of 2'); print('no space left'); raise SystemExit(3)"
    assert tool.follow([sys.executable, "-c", said], tmp_path / "log", line) == 3
    assert (tmp_path / "log").read_text() == "Downloading a\nno space left\n"
    assert out.getvalue() == "  Downloading a\n"


def test_only_a_pip_that_knows_raw_progress_is_asked_for_it(tool: ModuleType) -> None:
    assert "raw" in tool.pip_command(["x"], "24.1")
    assert "raw" in tool.pip_command(["x"], "26.0.1")
    assert "raw" not in tool.pip_command(["x"], "24.0")
    assert "raw" not in tool.pip_command(["x"], "23.2.1")
