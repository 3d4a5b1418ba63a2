"""One child process: started with a log file, watched, ended for sure."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from pagemill.local import launch

TAIL_LINES = 15


class Child:
    """A child process in a session of its own, so that Ctrl-C reaches the parent only and ends happen in order."""

    def __init__(self, name: str, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        self.name = name
        self.log = log
        wrapped = [sys.executable, "-I", "-S", launch.__file__, str(os.getpid()), *command]
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                wrapped,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Its exit status, negative for a signal; None while it runs."""
        return self._process.poll()

    def terminate(self) -> None:
        """Asks it to end: once to drain, a second time to end at once."""
        if self._process.poll() is None:
            self._process.terminate()

    def wait(self, seconds: float) -> bool:
        """Waits until it has ended, at most so long; whether it has."""
        try:
            self._process.wait(timeout=max(0.0, seconds))
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """Ends it and whatever it started in its session that has not left."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=5)

    def tail(self, lines: int = TAIL_LINES) -> list[str]:
        """The last lines of its log."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(0, self.log.stat().st_size - 16384))
                return file.read().decode("utf-8", "replace").splitlines()[-lines:]
        except OSError:
            return []

    def exit_text(self) -> str:
        """How it ended, for people."""
        code = self.returncode
        if code is None:
            return "still runs"
        if code < 0:
            with contextlib.suppress(ValueError):
                return f"was ended by {signal.Signals(-code).name}"
        return f"ended with status {code}"
