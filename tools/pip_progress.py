"""Runs `pip install`, keeps its whole log in a file and shows one line of progress. Standard library only.

Run as a file, `python pip_progress.py LOG ARGUMENTS...`, with the Python that pip shall install into.
"""

from __future__ import annotations

import itertools
import queue
import re
import shutil
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import IO

TAIL_LINES = 30
REDRAW_SECONDS = 0.5
RAW_PROGRESS = (24, 1)
"""The first pip that can say in lines how far a download is."""

_STEP = re.compile(
    r"\s*(Collecting|Downloading|Using cached|Processing|Installing|Preparing|Getting|Building|Attempting)"
)
_WORTH_A_LINE = ("Downloading", "Using cached", "Building", "Installing collected")
_BYTES = re.compile(r"Progress (\d+) of (\d+)")


class Line:
    """The one line of progress: redrawn on a terminal; elsewhere a line for each step that takes long."""

    def __init__(self, out: IO[str], terminal: bool, clock: Callable[[], float], columns: Callable[[], int]) -> None:
        self._out = out
        self._terminal = terminal
        self._clock = clock
        self._columns = columns
        self._step = "Starting pip"
        self._done = ""
        self._since = clock()

    def saw(self, text: str) -> None:
        """Pip has said a line."""
        if transferred := _BYTES.match(text.strip()):
            got, whole = (int(part) for part in transferred.groups())
            self._done = f" {100 * got // whole} %" if whole else ""
        elif _STEP.match(text) and ": finished with" not in text:
            self._enter(text.strip().removesuffix(": started"))
        self.draw()

    def draw(self) -> None:
        """Shows the step and for how many seconds it has gone on, in what room the terminal has."""
        if self._terminal:
            tail = f"{self._done} ({self._clock() - self._since:.0f} s)"
            room = max(0, self._columns() - len(tail) - 3)
            shown = f"  {self._step[:room]}{tail}"[: max(0, self._columns() - 1)]
            self._out.write(f"\r\033[K{shown}")
            self._out.flush()

    def clear(self) -> None:
        """Takes the line away."""
        if self._terminal:
            self._out.write("\r\033[K")
            self._out.flush()

    def _enter(self, step: str) -> None:
        # The list of all packages says less than that they are being unpacked.
        shown = "Unpacking what was downloaded" if step.startswith("Installing collected") else step
        if not self._terminal and step.startswith(_WORTH_A_LINE):
            self._out.write(f"  {shown}\n")
            self._out.flush()
        self._step, self._done, self._since = shown, "", self._clock()


def follow(command: list[str], log: Path, line: Line) -> int:
    """Runs pip to its end; its exit status."""
    said: queue.Queue[str | None] = queue.Queue()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    assert process.stdout is not None
    reader = threading.Thread(target=_read, args=(process.stdout, said), daemon=True)
    reader.start()
    try:
        with log.open("w", encoding="utf-8") as file:
            while (text := _next(said, line)) is not None:
                if not _BYTES.match(text):
                    file.write(text)
                line.saw(text)
        return process.wait()
    finally:
        process.terminate()
        process.wait()


def _next(said: queue.Queue[str | None], line: Line) -> str | None:
    """Pip's next line; None after the last. The line of progress moves while pip says nothing."""
    while True:
        try:
            return said.get(timeout=REDRAW_SECONDS)
        except queue.Empty:
            line.draw()


def _read(stream: IO[str], said: queue.Queue[str | None]) -> None:
    for text in stream:
        said.put(text)
    said.put(None)


def pip_command(arguments: list[str], version: str) -> list[str]:
    """The command line of pip, which tells of downloads where its version can."""
    numbers = tuple(int(part) for part in itertools.takewhile(str.isdigit, version.split(".")[:2]))
    progress = ["--progress-bar", "raw"] if numbers >= RAW_PROGRESS else []
    return [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", *progress, *arguments]


def main(arguments: list[str]) -> int:
    """Installs; where pip fails, shows the end of its log."""
    log = Path(arguments[0])
    line = Line(sys.stdout, sys.stdout.isatty(), time.monotonic, lambda: shutil.get_terminal_size().columns)
    try:
        status = follow(pip_command(arguments[1:], metadata.version("pip")), log, line)
    except KeyboardInterrupt:
        line.clear()
        sys.stderr.write("stopped; the same command goes on with what is not installed yet\n")
        return 130
    line.clear()
    if status:
        with log.open(encoding="utf-8") as file:
            sys.stderr.writelines(deque(file, TAIL_LINES))
        sys.stderr.write(f"pip failed; its whole log is {log}\n")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
