"""A command on a terminal of its own, as a person has it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time

_START = """
import fcntl, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from pagemill.cli import main
main()
"""
"""Takes the terminal after exec: Python code between fork and exec meets gRPC's threads half forked."""


class Terminal:
    """`pagemill` with these arguments on a terminal of so many columns."""

    def __init__(self, *arguments: str, columns: int = 80) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        environment = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "COLUMNS", "LINES")}
        self.process = subprocess.Popen(
            [sys.executable, "-c", _START, *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            env={**environment, "TERM": "xterm-256color"},
        )
        os.close(slave)
        self.seen = ""

    def expect(self, text: str, within: float = 60.0) -> None:
        """Reads until the command has written the text since it was last typed at."""
        deadline = time.monotonic() + within
        while text not in self.seen:
            ready, _, _ = select.select([self._master], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"no {text!r} in {self.seen!r}"
            try:
                self.seen += os.read(self._master, 4096).decode("utf-8", "replace")
            except OSError:
                assert text in self.seen, f"no {text!r} in {self.seen!r}"

    def type(self, text: str) -> None:
        """Types the text, and forgets what was seen."""
        self.seen = ""
        os.write(self._master, text.encode())

    def interrupt(self, text: str) -> None:
        """Presses Ctrl-C until the command has written the text.

        Python's readline misses a signal between the echo of one key and its wait for the next, until another comes.
        """
        for _ in range(20):
            self.type("\x03")
            with contextlib.suppress(AssertionError):
                return self.expect(text, within=3.0)
        raise AssertionError(f"no {text!r} in {self.seen!r}")

    def leave(self) -> None:
        """Waits for the command's end, which must be a good one."""
        try:
            with contextlib.suppress(OSError):  # EIO: the other end is closed.
                while select.select([self._master], [], [], 60)[0] and (more := os.read(self._master, 4096)):
                    self.seen += more.decode("utf-8", "replace")
            assert self.process.wait(timeout=20) == 0, self.seen
        finally:
            self.process.kill()
            self.process.wait()
            os.close(self._master)
